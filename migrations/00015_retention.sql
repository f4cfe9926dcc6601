-- +goose Up
-- Promise: what is removed is not needed again. The inbox remembers a message for
-- as long as the outbox holds it, whatever anybody's settings are; and what is
-- kept is kept for the longest time that any running worker wants.

-- A message is received in a transaction that began after the message's own had
-- ended: readers stay below the oldest transaction under way. So once every
-- message that is left in the outbox is of a later transaction than this one,
-- the message that was received in it is gone from there. Rows of before count as
-- received now, which is later than they were.
alter table inbox
  add column received_in xid8 not null default pg_current_xact_id();
comment on column inbox.received_in is 'the transaction that received it, above that of its outbox row. After a restore into another cluster: set it anew together with the outbox''s';

-- The sweep's way to the rows it has to do, and past those that it may not do yet.
drop index inbox_finished;

create index inbox_finished
    on inbox (finished_at, received_in)
 where status = 'done';

create index inbox_quarantine_received
    on inbox_quarantine (received_at);

create table retention_windows (
  worker        text        not null primary key,
  outbox_window interval    not null check (outbox_window > interval '0'),
  inbox_window  interval    not null,
  seen_at       timestamptz not null default clock_timestamp(),
  constraint retention_windows_inbox_longer check (inbox_window > outbox_window)
);
comment on table retention_windows is 'what each running worker has been told to keep, and for how long';
comment on column retention_windows.worker is 'one process, not the one that is started in its place';

-- Of windows that disagree the longest counts, for the outbox and for the inbox.
-- The worker with the longest outbox has an inbox that is longer still, so this
-- inbox is longer than this outbox too.
create view retention as
select max(outbox_window) as outbox_window,
       max(inbox_window)  as inbox_window
  from retention_windows
 where seen_at > now() - interval '1 hour';
comment on view retention is 'the windows that count; null where no worker was seen for an hour';

-- One entry of the primary key per topic.
create view outbox_oldest as
with recursive topics as (
  (select o.topic
     from outbox o
    order by o.topic
    limit 1)
   union all
  select (select o.topic
            from outbox o
           where o.topic > t.topic
           order by o.topic
           limit 1)
    from topics t
   where t.topic is not null
)
select min(first.transaction_id) as transaction_id
  from topics t
 cross join lateral (
         select o.transaction_id
           from outbox o
          where o.topic = t.topic
          order by o.transaction_id
          limit 1) first;
comment on view outbox_oldest is 'the oldest transaction with a message that is still in the outbox; null if it is empty';

-- One worker at a time is the janitor. Two would do no harm: each takes what no
-- other holds.
create table janitor_lease (
  only_one boolean     not null default true primary key check (only_one),
  holder   text        not null,
  until    timestamptz not null
);
comment on column janitor_lease.until is 'database time';

-- Workers sweep, and nobody else. The views are read with their owner's rights.
grant select, insert, update (outbox_window, inbox_window, seen_at), delete on retention_windows to payonce_worker;
grant select, insert, update (holder, until) on janitor_lease to payonce_worker;
grant select on retention, outbox_oldest to payonce_worker;
grant delete on inbox_quarantine to payonce_worker;
