-- +goose Up
-- Promise: a refund has one outcome and is reversed once, and no refund of the
-- provider's is booked twice. That the sum of refunds stays within what was
-- captured is decided at a version of the stream, which is unique itself.

create unique index ledger_events_one_refund_outcome
    on ledger_events (stream_id, (data ->> 'refund_id'))
 where type like 'refund.succeeded.v%'
    or type like 'refund.failed.v%';

create unique index ledger_events_one_refund_reversal
    on ledger_events (stream_id, (data ->> 'refund_id'))
 where type like 'refund.reversed.v%';

create unique index ledger_events_one_refund_per_reference
    on ledger_events ((data ->> 'provider'), (data ->> 'provider_refund'))
 where type like 'refund.succeeded.v%';
