package audit

// A key's client-made text stays out of reports: keys appear as the short hash
// under which logs know them.
const oneAnswerPerKey = `
select case
         when count(*) > 1
         then format('key %s of %s for %s: %s answers',
                     left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 12), scope, operation, count(*))
       end
  from idempotency_keys
 group by scope, operation, key`

// An answer outlives its body: what expired keeps its Location.
const answersNameTheirCharge = `
select case
         when e.stream_id is null
         then format('an answer to %s names %L: no such charge', k.scope, k.location)
         when e.merchant_id <> k.scope
         then format('%s: accepted for %s, charged for %s', e.stream_id, k.scope, e.merchant_id)
         when k.body <> ''
          and position(convert_to(format('"id":"%s"', e.stream_id), 'UTF8') in k.body) = 0
         then format('%s: the answer that names it is about something else', e.stream_id)
       end
  from idempotency_keys k
  left join ledger_events e
    on '/v1/charges/' || e.stream_id = k.location
   and e.version = 1
 where k.operation = 'POST /v1/charges'
   and k.status_code between 200 and 299`

const oneKeyPerCharge = `
select case
         when count(k.key) <> 1
         then format('%s: accepted under %s keys', e.stream_id, count(k.key))
       end
  from ledger_events e
  left join idempotency_keys k
    on k.operation = 'POST /v1/charges'
   and k.location = '/v1/charges/' || e.stream_id
 where e.version = 1
 group by e.stream_id`

func keyPromises() []promise {
	return []promise{
		{"one stored answer per key", oneAnswerPerKey},
		{"an answer names the charge that it accepted", answersNameTheirCharge},
		{"every charge was accepted under one key", oneKeyPerCharge},
	}
}
