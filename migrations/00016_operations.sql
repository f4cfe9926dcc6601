-- +goose Up
-- Promise: what operators must hear of at once lies where every worker can read
-- it in one entry: how the last audit ended, and for how long the oldest
-- transaction has held back what was committed after it.

create table audit_results (
  scope       text        not null,
  checked     bigint      not null,
  violated    bigint      not null,
  finished_at timestamptz not null default clock_timestamp(),
  constraint audit_results_once primary key (scope),
  constraint audit_results_violated_of_checked check (violated between 0 and checked)
);
comment on table audit_results is 'the last audit of each scope that came to its end';
comment on column audit_results.scope is 'tables: what our own show; provider: the reconciliation with the provider';

grant select on audit_results to payonce_worker;

-- Readers of the outbox stay below the oldest transaction that writes, in any
-- database of the server. Whose it is does not matter here, and is not told.
create function horizon_held()
returns double precision
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
select coalesce(max(extract(epoch from clock_timestamp() - began)), 0)
  from (select xact_start
          from pg_stat_activity
         where backend_xid is not null
           and pid <> pg_backend_pid()
         union all
        select prepared
          from pg_prepared_xacts) as writing(began)
$$;
comment on function horizon_held is 'seconds since the oldest writing transaction began, of those whose sessions the owner of the function may see; 0 if there is none';
revoke execute on function horizon_held from public;
grant execute on function horizon_held to payonce_worker;
