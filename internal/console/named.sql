-- console.named
-- The ids of the charges of a name, $1: a charge, a refund, an order or an idempotency key, of any
-- merchant, $2 at most. The indexes of orders and keys begin with the merchant.
select id
  from (
       select $1 as id
        union
       select o.stream_id
         from merchants m
        cross join lateral (
              select stream_id
                from ledger_events
               where merchant_id = m.merchant_id
                 and order_id = $1
                 and previous_version is null
               order by merchant_id desc, order_id desc, stream_id desc
               limit $2) o
        union
       select split_part(k.headers #>> '{Location,0}', '/', 4)
         from merchants m
        cross join (values ('POST /v1/charges'), ('POST /v1/charges/:id/refunds'), ('POST /v1/charges/:id/cancel')) as o (operation)
         join idempotency_keys k
           on k.scope = m.merchant_id
          and k.operation = o.operation
          and k.key = $1) found
 order by id desc
 limit $2
