-- What the worker and earlier requests have left: a charge that succeeded, of each of two merchants, with a
-- refund that is requested, and charges that are pending.
insert into merchants (merchant_id) values ('acme'), ('globex');
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select overlay(md5(m || v)::uuid::text placing '8' from 15)::uuid, 'ch_' || m, v, type, m, data::jsonb || jsonb_build_object('merchant_id', m), '{}', now()
  from unnest(array['acme', 'globex']) m
 cross join (values (1, 'charge.requested.v1', '{"amount":1000,"currency":"USD"}'),
                    (2, 'payment.captured.v1', '{"amount":1000}'),
                    (3, 'charge.succeeded.v1', '{}'),
                    (4, 'refund.requested.v1', '{"refund_id":"re_1","amount":400}'),
                    (5, 'charge.cancel_requested.v1', '{}')) e(v, type, data);
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_pending', 1, 'charge.requested.v1', 'acme', '{"merchant_id":"acme","amount":1000,"currency":"USD"}', '{}', now()),
       (gen_random_uuid(), 'ch_canceling', 1, 'charge.requested.v1', 'acme', '{"merchant_id":"acme","amount":1000,"currency":"USD"}', '{}', now()),
       (gen_random_uuid(), 'ch_canceling', 2, 'charge.cancel_requested.v1', 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_earlier', 1, 'charge.requested.v1', 'acme', '{"order_id":"1","one_charge_per_order":true}', '{}', now());
