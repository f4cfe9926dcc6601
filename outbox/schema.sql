-- Promise: a message is stored by the commit that causes it. It exists exactly if
-- that commit does, and every consumer group reads all messages, in the order of their
-- transaction ids. A reader stays below the oldest open transaction, so it skips none that
-- commits late.
--
-- This file needs no other table and can be applied by itself.

-- +goose Up
create table outbox (
  topic          text        collate "C" not null,
  transaction_id xid8        not null default pg_current_xact_id(),
  "offset"       bigint      generated always as identity,
  message_id     text        collate "C" not null,
  payload        bytea       not null,
  metadata       jsonb       not null,
  created_at     timestamptz not null default clock_timestamp(),

  -- One message at each place of a topic. The order is that of the transactions.
  constraint outbox_pkey primary key (topic, transaction_id, "offset"),

  -- An id that a UUID fits into, and never none.
  constraint outbox_message_id_check check (length(message_id) between 1 and 36),

  -- Names and values, as Watermill has them, and 1 MiB of them at most: a page that no
  -- reader can hold would block its topic. A value that comes from another table may be
  -- compressed, and a concatenation is not.
  constraint outbox_metadata_check
       check (jsonb_typeof(metadata) = 'object' and pg_column_size(metadata || '{}') <= 1048576)
);
comment on column outbox.message_id is 'the Watermill UUID; payonce stores the event id here';
comment on column outbox."offset" is 'order within a transaction; it does not order transactions';

create table outbox_offsets (
  topic          text   collate "C" not null,
  consumer_group text   collate "C" not null,
  transaction_id xid8   not null,
  "offset"       bigint not null,

  -- One offset for each consumer group of a topic.
  constraint outbox_offsets_pkey primary key (topic, consumer_group)
);
comment on table outbox_offsets is 'how far a consumer group has received: everything up to and including this pair';

-- The recursion reads one entry of the primary key for each topic.
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
comment on view outbox_oldest is 'the oldest transaction with a message that is still in the outbox; null if the outbox is empty';

-- Tables that were restored from a dump are told from those that were not, whatever
-- transaction the server counts. Offsets, checkpoints and the order of the outbox
-- are transaction ids of the server that wrote them, and another server gives the
-- same ids to other transactions.
--
-- A dump does not carry the transaction that really wrote a row, nor the columns
-- that a table once had. A copy of the files carries both, and so do a standby, a
-- database made from a template, pg_upgrade, VACUUM FULL and CLUSTER. The server's
-- identifier would not do: a server and its snapshot share one, and pg_upgrade,
-- which keeps transactions, makes a new one.
--
-- After a dump was restored, an application that has only this package's tables runs, once
-- and as their owner:
--
--   begin;
--   lock table outbox_offsets, outbox, numbering_mark in access exclusive mode;
--   update outbox set transaction_id = '2';
--   update outbox_offsets set transaction_id = '0', "offset" = 0;
--   alter table numbering_mark add column dropped boolean;
--   alter table numbering_mark drop column dropped;
--   update numbering_mark set written_in = pg_current_xact_id();
--   commit;
--
-- All messages that are left are redelivered, in the order of "offset".
create table numbering_mark (
  dropped    boolean,
  only_one   boolean not null default true,
  written_in xid8    not null,

  -- One mark.
  constraint numbering_mark_pkey primary key (only_one),

  -- No second one beside it.
  constraint numbering_mark_only_one_check check (only_one)
);
alter table numbering_mark
 drop column dropped;
comment on table numbering_mark is 'whether the stored transaction ids are this server''s; the SQL above it in the schema''s file makes them so, and payonce outbox repair. Do not change the row by hand';
comment on column numbering_mark.written_in is 'the transaction that wrote this row; its xmin is the same unless the row was copied';

insert into numbering_mark (written_in) values (pg_current_xact_id());

-- False if the row is missing: a reader that cannot know receives nothing.
create view numbering as
select exists (
         select
           from numbering_mark
          where only_one
            and xmin = written_in::xid)
   and exists (
         select
           from pg_catalog.pg_attribute
          where attrelid = 'numbering_mark'::regclass
            and attnum > 0
            and attisdropped) as own;
comment on view numbering is 'whether the stored transaction ids are this server''s own';
