-- The charges $first to $last, each with all that belongs to one.

insert into ledger_events
       (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || n, v, case v when 1 then 'charge.requested.v1' else 'payment.captured.v1' end, 'm' || n % 2,
       case v when 1 then jsonb_build_object('order_id', 'order-' || n / 30) else jsonb_build_object('provider', 'stripe', 'payment_intent', 'pi_' || n) end, '{}', now()
  from generate_series($first, $last) n,
       generate_series(1, 2) v;

insert into ledger_postings
select 'ch_' || n, v, 1, 'm' || n % 2, 'a:EUR', 'b:EUR', 1, 'EUR'
  from generate_series($first, $last) n,
       generate_series(1, 2) v;

insert into idempotency_keys
       (scope, operation, key, fingerprint, status_code, body, expires_at)
select 'm' || n % 2, 'POST /v1/charges', 'key-' || n, '', 202, '', now() + n * interval '1 second'
  from generate_series($first, $last) n;

insert into account_balances
select 'm' || n, 'a:EUR', 1, 1
  from generate_series($first, $last) n;

insert into outbox
       (topic, message_id, payload, metadata)
select 'charges', n, '', jsonb_build_object('ordering_key', 'ch_' || n)
  from generate_series($first, $last) n;

insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, holder, done_fence, finished_at)
select 'r', kind || n, 'ch_' || n, 't', '', '{}', '', case when kind = 'behind' then 'pending' when n % 50 = 7 and kind = 'pending' then 'running' else kind end,
       kind = 'pending', 'h' || n % 5, nullif(kind = 'done', false)::int - 1, now()
  from generate_series($first, $last) n,
       unnest(array['done', 'pending', 'behind']) kind;

insert into merchants (merchant_id)
select 'm' || n
  from generate_series($first, $last) n;

insert into stock
       (merchant_id, sku, supplied, available)
select 'm' || n, 'sku', 1, 1
  from generate_series($first, $last) n;

insert into reservations
       (charge_id, merchant_id, sku, quantity)
select 'ch_' || n, 'm' || n, 'sku', 1
  from generate_series($first, $last) n
