-- A page of charges. $1 is the charge before it, $2 a status or '', $3 an amount or null, $4 how
-- many charges are read, $5 how many are returned. A charge's ID begins with the time of its
-- request, so the primary key is the order of the list; no index serves the rest, so a page reads
-- a bounded part. The last column is where the next page goes on if that part was read whole.
with read as (
  select charge_id, merchant_id, status, view
    from charge_list
   where generation = (select generation from projections where state = 'live')
     and charge_id < $1
   order by charge_id desc
   limit $4
)
select coalesce(m.charge_id, ''), coalesce(m.merchant_id, ''), coalesce(m.view, '{}'), coalesce(e.until, '')
  from (select case when count(*) = $4 then min(charge_id) end as until from read) e
  left join (
       select charge_id, merchant_id, view
         from read
        where ($2 = '' or status = $2)
          and ($3::bigint is null or (view ->> 'amount')::bigint = $3)
        order by charge_id desc
        limit $5) m on true
 order by m.charge_id desc
