-- Promise: a message exists if and only if the transaction that caused it commits, and stays until
-- its reader has acknowledged it.
--
-- The outbox is a queue: a row that was acknowledged is deleted. Nothing refers to a position,
-- so a row that commits late, or comes from a dump, is read like any other.

-- +goose Up
create table outbox (
  topic      text        collate "C" not null,
  id         bigint      generated always as identity,
  message_id text        collate "C" not null,
  payload    bytea       not null,
  metadata   jsonb       not null,
  created_at timestamptz not null default clock_timestamp(),

  -- The order of a topic. A transaction that saw another one's commit has greater ids.
  constraint outbox_pkey primary key (topic, id),

  -- It holds a UUID or a sender's own id, and is never empty.
  constraint outbox_message_id_check check (length(message_id) between 1 and 255),

  -- Names and values, of 1 MiB at most: a page that no reader can hold would block its topic. A
  -- value that comes from another table may be compressed, and a concatenation is not.
  constraint outbox_metadata_check
       check (jsonb_typeof(metadata) = 'object' and pg_column_size(metadata || '{}') <= 1048576)
);
comment on column outbox.message_id is 'the Watermill UUID; payonce stores the event id here';

-- The topics that were read: one row for each, and so one reader. A reader locks it, for which its role needs update.
create table outbox_topics (topic text collate "C" primary key);
