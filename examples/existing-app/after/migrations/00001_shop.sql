-- +goose Up
create table items (
    sku   text primary key,
    stock integer not null check (stock >= 0)
);

create table orders (
    id       uuid primary key,
    customer text not null,
    sku      text not null references items
);

create table shipments (
    id       bigint generated always as identity primary key,
    order_id uuid not null references orders
);

insert into items values ('lamp', 100);

-- +goose Down
drop table shipments, orders, items;
