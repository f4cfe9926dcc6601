-- Promise: no article is sold that is not in stock, and no article is lost.

create table stock (
  merchant_id text   collate "C" not null,
  sku         text   collate "C" not null,
  supplied    bigint not null,
  available   bigint not null,
  reserved    bigint not null default 0,
  sold        bigint not null default 0,

  -- An article of a merchant has one row.
  constraint stock_pkey primary key (merchant_id, sku),

  -- An article that is not there is not reserved: of two commits that take the last
  -- piece the second is refused.
  constraint stock_available_not_negative check (available >= 0),

  -- A piece that was not reserved is not sold or released.
  constraint stock_reserved_not_negative check (reserved >= 0),

  -- Every piece that was supplied is available, reserved or sold.
  constraint stock_adds_up check (available + reserved + sold = supplied)
) with (fillfactor = 80);

create table reservations (
  charge_id   text   collate "C" not null,
  merchant_id text   collate "C" not null,
  sku         text   collate "C" not null,
  quantity    bigint not null,
  status      text   collate "C" not null default 'open',

  -- A charge reserves an article once.
  constraint reservations_once primary key (charge_id, sku),

  -- Only an article that is in stock is reserved.
  constraint reservations_known_sku foreign key (merchant_id, sku) references stock,

  -- A reservation is of something.
  constraint reservations_quantity_check check (quantity > 0),

  -- open: reserved. sold: captured. released: returned to stock.
  constraint reservations_status_check check (status in ('open', 'sold', 'released'))
) with (fillfactor = 80);
comment on table reservations is 'what a charge holds of the stock';
