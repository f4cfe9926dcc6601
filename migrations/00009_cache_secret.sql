-- +goose Up
-- Promise: whoever reads this database, and nobody else, can vouch for a cached
-- answer. The cache is outside and may lie; what it says counts only with a seal
-- made with this secret. A new secret makes all that was cached unknown:
--   update cache_secret set secret = sha256(…)

create table cache_secret (
  only_row boolean not null default true primary key check (only_row),
  secret   bytea   not null check (length(secret) = 32)
);
comment on column cache_secret.secret is 'key of the seals on cached answers; whoever has it and can write to the cache can forge answers';

-- A random UUID has 122 random bits: three of them fill the 256 of a seal's key.
insert into cache_secret (secret)
select sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
