package audit

var stockChecks = []statement{
	{"stock adds up to what was supplied", `
select case
         when available + reserved + sold <> supplied or least(available, reserved, sold) < 0
         then format('%s of %s: %s available, %s reserved and %s sold of %s supplied',
                     sku, merchant_id, available, reserved, sold, supplied)
       end
  from stock`},
	{"reserved stock is held by charges", `
with held as (
  select merchant_id,
         sku,
         sum(quantity) as quantity
    from reservations
   where status = 'open'
   group by merchant_id, sku
)
select case
         when coalesce(s.reserved, 0) <> coalesce(h.quantity, 0)
         then format('%s of %s: %s reserved, charges hold %s',
                     sku, merchant_id, coalesce(s.reserved, 0), coalesce(h.quantity, 0))
       end
  from stock s
  full join held h using (merchant_id, sku)`},
	{"sold stock was taken by charges", `
with bought as (
  select merchant_id,
         sku,
         sum(quantity) as quantity
    from reservations
   where status = 'sold'
   group by merchant_id, sku
)
select case
         when coalesce(s.sold, 0) <> coalesce(b.quantity, 0)
         then format('%s of %s: %s sold, charges took %s',
                     sku, merchant_id, coalesce(s.sold, 0), coalesce(b.quantity, 0))
       end
  from stock s
  full join bought b using (merchant_id, sku)`},
	{"a charge holds what it reserved", `
with promised as (
  select e.stream_id                 as charge_id,
         item.value ->> 'sku'        as sku,
         item.value ->> 'quantity'   as quantity
    from ledger_events e
   cross join lateral jsonb_path_query(e.data, '$.items[*]') as item(value)
   where e.type like 'inventory.reserved.v%'
)
select case
         when r.charge_id is null
         then format('%s: %s of %s reserved, none held', charge_id, p.quantity, sku)
         when p.charge_id is null
         then format('%s: %s of %s held, never reserved', charge_id, r.quantity, sku)
         when p.quantity is distinct from r.quantity::text
         then format('%s: %s of %s reserved, %s held', charge_id, p.quantity, sku, r.quantity)
       end
  from promised p
  full join reservations r using (charge_id, sku)`},
	{"a reservation follows its charge's outcome", `
with charges as (
  select stream_id,
         case
           when bool_or(type like 'charge.succeeded.v%') then 'sold'
           when bool_or(type like 'charge.failed.v%')    then 'released'
           else 'open'
         end as due
    from ledger_events
   group by stream_id
)
select case
         when r.status is distinct from c.due
         then format('%s: its %s is %s, should be %s', r.charge_id, r.sku, r.status, coalesce(c.due, 'nobody''s'))
       end
  from reservations r
  left join charges c
    on c.stream_id = r.charge_id`},
}
