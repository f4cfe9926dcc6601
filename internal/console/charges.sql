-- A page of charges. $1 is the charge before it, or '', $2 a status or '', $3 an amount or '', $4
-- how many charges are read, $5 how many are returned. A charge's ID begins with the time of its
-- request, so the primary key is the order of the list; no index serves the rest, so a page reads
-- a bounded part. next is the last charge that was read or returned, if there may be more.
with read as (
  select charge_id, merchant_id, status, view
    from charge_list
   where generation = (select generation from projections where state = 'live')
     and charge_id < coalesce(nullif($1, ''), 'ch_~')
   order by charge_id desc
   limit $4
), matches as (
  select *, row_number() over (order by charge_id desc) as place
    from read
   where ($2 = '' or status = $2)
     and ($3 = '' or view ->> 'amount' = $3)
   order by charge_id desc
   limit $5 + 1
)
select jsonb_build_object(
  'rows', (select coalesce(jsonb_agg(jsonb_build_object('merchant', merchant_id, 'view', view) order by place), '[]') from matches where place <= $5),
  'next', case when exists (select from matches where place > $5) then (select charge_id from matches where place = $5)
               when (select count(*) from read) = $4 then (select min(charge_id) from read) end)
