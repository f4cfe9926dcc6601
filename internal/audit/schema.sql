-- Promise: the result of the last audit stands where a worker reads it in one row and
-- reports it as a metric.

create table audit_results (
  scope       text        collate "C" not null,
  checked     bigint      not null,
  violated    bigint      not null,
  finished_at timestamptz not null default clock_timestamp(),

  -- One result for each scope: the last audit that was finished.
  constraint audit_results_once primary key (scope),

  -- Violations are some of what was checked.
  constraint audit_results_violated_of_checked check (violated between 0 and checked)
);
comment on table audit_results is 'the last audit of each scope that was finished';
comment on column audit_results.scope is 'tables: what our own tables show; provider: the reconciliation with the provider';
