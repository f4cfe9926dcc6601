-- The charges of a name, $1: a charge, a refund, an order or an idempotency key, of any merchant.
-- The indexes of orders and keys begin with the merchant.
select jsonb_build_object('rows', coalesce(jsonb_agg(jsonb_build_object('merchant', merchant_id, 'view', view) order by charge_id desc), '[]'))
  from (
select charge_id, merchant_id, view
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and charge_id in (
         select $1
          union all
         select o.charge_id
           from merchants m
          cross join lateral (
                select charge_id
                  from charge_list
                 where generation = (select generation from projections where state = 'live')
                   and merchant_id = m.merchant_id
                   and order_id = $1
                 order by created_at desc, charge_id desc
                 limit $2) o
          union all
         select split_part(k.headers #>> '{Location,0}', '/', 4)
           from merchants m
          cross join (values ('POST /v1/charges'), ('POST /v1/charges/:id/refunds'), ('POST /v1/charges/:id/cancel')) as o (operation)
           join idempotency_keys k
             on k.scope = m.merchant_id
            and k.operation = o.operation
            and k.key = $1)
 order by charge_id desc
 limit $2) found
