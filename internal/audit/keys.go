package audit

var keyChecks = []statement{
	// A key's client-made text stays out of reports: keys appear as the short hash
	// under which logs know them.
	{"one stored answer per key", `
select case
         when count(*) > 1
         then format('key %s of %s for %s: %s answers',
                     left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 12), scope, operation, count(*))
       end
  from idempotency_keys
 group by scope, operation, key`},
	// An answer outlives its body: what expired keeps its Location.
	{"an answer names the charge that it accepted", `
select case
         when e.stream_id is null
         then format('an answer to %s names %L: no such charge', k.scope, k.location)
         when e.merchant_id <> k.scope
         then format('%s: accepted for %s, charged for %s', e.stream_id, k.scope, e.merchant_id)
         when k.body <> ''
          and (position(convert_to(format('"id":"%s"', e.stream_id), 'UTF8') in k.body) = 0
               or position(convert_to(format('"amount":%s,', e.data ->> 'amount'), 'UTF8') in k.body) = 0)
         then format('%s: the answer that names it is about something else', e.stream_id)
       end
  from idempotency_keys k
  left join ledger_events e
    on '/v1/charges/' || e.stream_id = k.location
   and e.version = 1
 where k.operation = 'POST /v1/charges'
   and k.status_code between 200 and 299`},
	{"every charge was accepted under one key", `
select case
         when count(k.key) <> 1
         then format('%s: accepted under %s keys', e.stream_id, count(k.key))
       end
  from ledger_events e
  left join idempotency_keys k
    on k.operation = 'POST /v1/charges'
   and k.location = '/v1/charges/' || e.stream_id
 where e.version = 1
 group by e.stream_id`},
	{"an answer names the refund that it accepted", `
select case
         when e.stream_id is null
         then format('an answer to %s names %L: no such refund', k.scope, k.location)
         when e.merchant_id <> k.scope
         then format('%s: refund %s accepted for %s, refunded for %s',
                     e.stream_id, e.data ->> 'refund_id', k.scope, e.merchant_id)
         when k.body <> ''
          and (position(convert_to(format('"id":"%s"', e.data ->> 'refund_id'), 'UTF8') in k.body) = 0
               or position(convert_to(format('"amount":%s,', e.data ->> 'amount'), 'UTF8') in k.body) = 0)
         then format('%s: the answer that names refund %s is about something else',
                     e.stream_id, e.data ->> 'refund_id')
       end
  from idempotency_keys k
  left join ledger_events e
    on '/v1/charges/' || e.stream_id || '/refunds/' || (e.data ->> 'refund_id') = k.location
   and e.type like 'refund.requested.v%'
 where k.operation like 'POST /v1/charges/%/refunds'
   and k.status_code between 200 and 299`},
	// A refund that a refused request has made is found here: it has no key.
	{"every refund was accepted under one key", `
select case
         when count(k.key) <> 1
         then format('%s: refund %s accepted under %s keys', e.stream_id, e.data ->> 'refund_id', count(k.key))
       end
  from ledger_events e
  left join idempotency_keys k
    on k.operation like 'POST /v1/charges/%/refunds'
   and k.location = '/v1/charges/' || e.stream_id || '/refunds/' || (e.data ->> 'refund_id')
 where e.type like 'refund.requested.v%'
 group by e.stream_id, e.version, e.data ->> 'refund_id'`},
	{"an answer names the charge that is to be canceled", `
select case
         when e.stream_id is null
         then format('an answer to %s names %L: not asked to be canceled', k.scope, k.location)
         when e.merchant_id <> k.scope
         then format('%s: canceled for %s, charged for %s', e.stream_id, k.scope, e.merchant_id)
         when k.body <> ''
          and position(convert_to(format('"id":"%s"', e.stream_id), 'UTF8') in k.body) = 0
         then format('%s: the answer that names it is about something else', e.stream_id)
       end
  from idempotency_keys k
  left join ledger_events e
    on '/v1/charges/' || e.stream_id = k.location
   and e.type like 'charge.cancel_requested.v%'
 where k.operation like 'POST /v1/charges/%/cancel'
   and k.status_code between 200 and 299`},
	// A second request, under another key, gets its answer without an event.
	{"every cancellation was accepted under a key", `
select case
         when count(k.key) = 0
         then format('%s: asked to be canceled under no key', e.stream_id)
       end
  from ledger_events e
  left join idempotency_keys k
    on k.operation like 'POST /v1/charges/%/cancel'
   and k.location = '/v1/charges/' || e.stream_id
 where e.type like 'charge.cancel_requested.v%'
 group by e.stream_id`},
	{"a refusal names nothing", `
select case
         when location <> ''
         then format('%s of %s was refused with %s, and the answer names %L',
                     operation, scope, status_code, location)
       end
  from idempotency_keys
 where status_code not between 200 and 299`},
}
