-- +goose Up
-- Promise: what ends its process is told apart from what ran beside it, a claim
-- reads no further behind parked messages, and nothing is discarded by nobody.

alter table inbox
  add column deaths     int not null default 0,
  add column decided_by text,
  add column decided_at timestamptz,
  drop constraint inbox_status_check,
  add constraint inbox_status_check
      check (status in ('pending', 'running', 'done', 'dead', 'discarded')),
  add constraint inbox_decided_by_somebody
      check ((decided_by is null) = (decided_at is null) and decided_by <> ''),
  add constraint inbox_discarded_by_somebody
      check (status <> 'discarded' or decided_by is not null);
comment on column inbox.status is 'dead: parked for a human; discarded: the human ended it undone';
comment on column inbox.deaths is 'holders that died or went silent with it, one after another, since one came back';
comment on column inbox.attempts is 'errors and panics since the last wait, deaths, and the claim under way';
comment on column inbox.decided_by is 'the operator who last retried or discarded it';
comment on column inbox.decided_at is 'when, in database time';

-- A claim looks once at the open and, where they block, once at the parked
-- messages of a key.
drop index inbox_open_by_key;

create index inbox_open_by_key
    on inbox (receiver, ordering_key, id)
 where status in ('pending', 'running');

create index inbox_parked_by_key
    on inbox (receiver, ordering_key, id)
 where status = 'dead';

create index inbox_suspects
    on inbox (receiver, due_at)
 where status = 'running'
   and deaths >= 2;

-- For operators, who page through what was set aside.
create index inbox_set_aside
    on inbox (status, id)
 where status in ('dead', 'discarded');

-- The sweep's way to the rows it has to do.
create index inbox_finished
    on inbox (finished_at)
 where status = 'done';
