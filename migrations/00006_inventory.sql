-- +goose Up
-- Promise: nothing is sold that is not there. The check refuses the whole commit
-- of whoever takes the last piece second, and the foreign key whoever asks for
-- an article that nobody keeps.

create table stock (
  merchant_id text   not null references merchants,
  sku         text   not null,
  supplied    bigint not null,
  available   bigint not null,
  reserved    bigint not null default 0,
  sold        bigint not null default 0,
  primary key (merchant_id, sku),
  constraint stock_available_not_negative check (available >= 0),
  constraint stock_reserved_not_negative  check (reserved >= 0),
  constraint stock_adds_up                check (available + reserved + sold = supplied)
) with (fillfactor = 80);

create table reservations (
  charge_id   text   not null,
  merchant_id text   not null,
  sku         text   not null,
  quantity    bigint not null check (quantity > 0),
  status      text   not null default 'open' check (status in ('open', 'sold', 'released')),
  constraint reservations_once      primary key (charge_id, sku),
  constraint reservations_known_sku foreign key (merchant_id, sku) references stock
) with (fillfactor = 80);
comment on table reservations is 'what a charge holds of the stock: open until it is sold or released';
