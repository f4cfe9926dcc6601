-- Promise: the results of audits stand where a worker reads them in a few rows and
-- reports them as metrics. What an operator does is recorded with its author in the
-- transaction that does it, and the record is never changed.

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

-- What the workers have found. An increment of theirs is counted in the transaction that moves the
-- follower audit behind its events.
create table audit_progress (
  only_one   boolean not null default true,
  checked    bigint  not null default 0,
  violated   bigint  not null default 0,
  superseded bigint  not null default 0,

  -- One audit follows the ledger.
  constraint audit_progress_pkey primary key (only_one),

  -- No second one beside it.
  constraint audit_progress_only_one_check check (only_one)
);
comment on table audit_progress is 'what the workers have found of the events that they have audited';
comment on column audit_progress.violated is 'of all increments';
comment on column audit_progress.superseded is 'how many of these were found before an audit of the tables that was finished since';

insert into audit_progress default values;
insert into followers (name) values ('audit');

-- What was recorded before the first event that the workers have not audited has been audited.
create view audit_recent as
select p.violated,
       p.superseded,
       coalesce((select (select e.recorded_at
                           from ledger_events e
                          where (e.txid, e.position) > (f.txid, f.position)
                          order by e.txid, e.position
                          limit 1)
                   from followers f
                  where f.name = 'audit'), clock_timestamp()) as audited_until
  from audit_progress p;
comment on view audit_recent is 'what the workers have found, and what they have audited: everything that was recorded before audited_until';

-- The triggers of service.sql write this table, in the transaction of the action itself and
-- whatever program acts: an action without its row cannot be committed.
create table operator_actions (
  action_id   bigint      generated always as identity,
  acted_at    timestamptz not null default clock_timestamp(),
  actor       text        collate "C" not null,
  login       text        collate "C" not null,
  action      text        collate "C" not null,
  subject     text        collate "C" not null,
  merchant_id text        collate "C",
  before      jsonb,
  after       jsonb       not null,

  -- Each action has its own number.
  constraint operator_actions_pkey primary key (action_id),

  -- An action has an actor.
  constraint operator_actions_actor_check check (actor <> '')
);
comment on table operator_actions is 'what operators did; append-only';
comment on column operator_actions.actor is 'the operator as the program names it, in the setting payonce.actor or in a column of the row; else the database user';
comment on column operator_actions.login is 'the database user of the session, which no program chooses';
comment on column operator_actions.subject is 'what was changed: the number of a message, the prefix of a key, the generation of a secret, the name of an article, the transaction of a repair, the id of a merchant or an event';
comment on column operator_actions.before is 'the stored values that changed; null: the row is new';
comment on column operator_actions.after is 'the stored values, without keys, hashes and secrets, none if the row was deleted, and the operator''s reason and id where they were given';

-- A supply that has an id is made once.
create unique index operator_actions_one_supply
    on operator_actions (merchant_id, subject, (after ->> 'id') collate "C")
 where action = 'stock supply';

-- Actions are appended and never changed.
create trigger operator_actions_append_only
before update or delete or truncate on operator_actions
   for each statement execute function refuse_change();

-- The arguments are the action, the columns of subject, merchant and actor ('' for none), and
-- the columns whose values are stored. A member of a column metadata counts as a column, unless one
-- has its name. Of a URL only the origin is stored: its path may hold a
-- token. The setting payonce.reason adds the operator's reason, of which 2,000 characters stay:
-- the login of the api may set it. The setting payonce.action_id adds the
-- operator's name of the action, in the same way. An action that changes none of
-- the stored values is not recorded.
create function record_action() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  held    jsonb := to_jsonb(coalesce(new, old));
  more    jsonb := held -> 'metadata';
  shown   jsonb;
  earlier jsonb;
begin
  if jsonb_typeof(more) = 'object' then
    held := more || held;
  end if;
  select jsonb_object_agg(key, value) into shown
    from jsonb_each(held)
   where key = any (tg_argv[4]::text[]);
  if tg_op = 'UPDATE' then
    select jsonb_object_agg(key, value) into earlier
      from jsonb_each(to_jsonb(old))
     where key = any (tg_argv[4]::text[]);
  elsif tg_op = 'DELETE' then
    earlier := shown;
    shown   := '{}';
  end if;
  if earlier is not distinct from shown then
    return null;
  end if;
  select jsonb_object_agg(key, value) into earlier
    from jsonb_each(earlier)
   where shown -> key is distinct from value;
  if shown ? 'webhook_url' then
    shown := shown || jsonb_build_object('webhook_url',
      regexp_replace(shown ->> 'webhook_url', '^(\w+://)([^/?#]*@)?([^/?#]*).*$', '\1\3'));
  end if;
  if earlier ? 'webhook_url' then
    earlier := earlier || jsonb_build_object('webhook_url',
      regexp_replace(earlier ->> 'webhook_url', '^(\w+://)([^/?#]*@)?([^/?#]*).*$', '\1\3'));
  end if;
  if current_setting('payonce.reason', true) <> '' then
    shown := shown || jsonb_build_object('reason', left(current_setting('payonce.reason', true), 2000));
  end if;
  if current_setting('payonce.action_id', true) <> '' then
    shown := shown || jsonb_build_object('id', left(current_setting('payonce.action_id', true), 255));
  end if;
  insert into public.operator_actions
         (actor, login, action, subject, merchant_id, before, after)
  values (left(coalesce(nullif(current_setting('payonce.actor', true), ''), nullif(held ->> tg_argv[3], ''), session_user), 255),
          session_user, tg_argv[0], coalesce(held ->> tg_argv[1], ''), held ->> tg_argv[2], earlier, shown);
  return null;
end
$$;
comment on function record_action is 'the trigger that records what operators did';
revoke execute on function record_action from public;
