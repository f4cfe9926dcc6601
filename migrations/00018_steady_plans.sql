-- +goose Up
-- Promise: what a message costs does not follow what the planner believes of the
-- inbox, nor what a charge costs how often its row of the list was written.

-- The oldest message of a key was looked for among all that are due, where nobody
-- had counted the messages yet: after a restore, or an upgrade of the server. A
-- condition that always holds, and that only who asks for a time states, keeps the
-- index to those who do.
drop index inbox_due;

create index inbox_due
    on inbox (receiver, due_at)
 where status in ('pending', 'running')
   and due_at is not null;

-- A charge is written into the list a few times while it is carried, mostly with the
-- status that it has. Where its page has room, that touches no index.
alter table charge_list set (fillfactor = 60);
