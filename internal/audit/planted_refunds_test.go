package audit_test

// plantedInRefunds are the violations of what is promised of refunds,
// cancellations and their keys.
func plantedInRefunds() map[string][]plant {
	const (
		legal    = "streams are legal"
		postings = "postings are what the events cause"
		messages = "every request and outcome has its message"
		oneKey   = "every refund was accepted under one key"
		canceled = "every cancellation was accepted under a key"
	)
	return map[string][]plant{
		"a charge is canceled on request, before its outcome": {
			{"a_cancellation_without_a_request", `
update ledger_events
   set data = jsonb_set(data, '{code}', '"canceled"')
 where stream_id = '{declined}'
   and type = 'charge.failed.v1'`, []string{legal}},
			{"a_cancellation_after_the_outcome", appendEvent("sold", "charge.cancel_requested.v1", `{}`), []string{
				canceled, messages, legal,
			}},
			{"a_second_cancellation", appendEvent("canceled", "charge.cancel_requested.v1", `{}`), []string{messages, legal}},
		},
		"one outcome per refund": {
			{"a_refund_that_failed_too", appendEvent("refunded", "refund.failed.v1", `{"refund_id": "{part}", "code": "provider_refused", "message": ""}`), []string{
				messages, postings, legal,
			}},
		},
		"a refund ends as it was requested": {
			{"an_attempt_at_no_refund", appendEvent("refunded", "refund.attempt_failed.v1", `{"refund_id": "re_none", "status_code": 500}`), []string{legal}},
			{"a_refund_requested_twice", appendEvent("refunded", "refund.requested.v1", `{"refund_id": "{bounced}", "amount": 200, "notify": true}`), []string{
				messages, postings, legal,
			}},
			{"a_refund_of_another_amount", `
update ledger_events
   set data = jsonb_set(data, '{amount}', '401')
 where stream_id = '{refunded}'
   and type = 'refund.succeeded.v1'
   and data ->> 'refund_id' = '{part}'`, []string{postings, legal}},
		},
		"a refund is reversed once, after it succeeded": {
			{"a_refund_reversed_twice", appendEvent("refunded", "refund.reversed.v1", `{"refund_id": "{reversed}", "provider_refund": "re_reversed", "amount": 100}`), []string{
				messages, postings, legal,
			}},
			{"a_reversal_of_a_pending_refund", appendEvent("refunded", "refund.reversed.v1", `{"refund_id": "{returning}", "provider_refund": "re_x", "amount": 300}`), []string{
				messages, postings, legal,
			}},
			{"a_reversal_by_another_refund", `
update ledger_events
   set data = jsonb_set(data, '{provider_refund}', '"re_x"')
 where stream_id = '{refunded}'
   and type = 'refund.reversed.v1'`, []string{legal}},
		},
		"one refund per refund of the provider": {
			{"a_provider's_refund_booked_twice", `
update ledger_events
   set data = jsonb_set(data, '{provider_refund}', '"re_part"')
 where stream_id = '{refunded}'
   and data ->> 'refund_id' = '{reversed}'
   and type <> 'refund.requested.v1'`, []string{legal}},
		},
		"refunds never exceed the capture": {
			{"a_refund_of_more_than_is_left", `
update ledger_events
   set data = jsonb_set(data, '{amount}', '601')
 where data ->> 'refund_id' = '{returning}';
update ledger_postings
   set amount = 601
 where stream_id = '{refunded}'
   and amount = 300`, []string{"an answer names the refund that it accepted", legal}},
		},
		"only a succeeded charge is refunded": {
			{"a_refund_of_an_open_charge", appendEvent("paying", "refund.requested.v1", `{"refund_id": "re_early", "amount": 1, "notify": false}`), []string{
				"refunds never exceed the capture", messages, oneKey, postings, legal,
			}},
		},
		"no accepted refund is lost": {
			{"a_message_done_before_the_refund", `update inbox set status = 'done', done_fence = fence where ordering_key = '{refunded}'`, nil},
			{"a_refund_whose_message_is_gone", `
delete from outbox where metadata ->> 'type' = 'refund.requested.v1';
delete from inbox where type = 'refund.requested.v1'`, []string{messages}},
		},
		"an answer names the refund that it accepted": {
			{"an_answer_about_no_refund", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
select scope, operation, 'another', fingerprint, status_code, content_type, location || 'x', body, expires_at
  from idempotency_keys
 where key = 'key-part'`, nil},
			{"a_refund_for_another_merchant", `update idempotency_keys set scope = 'globex' where key = 'key-part'`, nil},
			{"an_answer_with_another_refund", `update idempotency_keys set body = (select body from idempotency_keys where key = 'key-bounced') where key = 'key-part'`, nil},
		},
		oneKey: {
			{"a_refund_under_no_key", `delete from idempotency_keys where key = 'key-part'`, nil},
			{"a_refund_under_two_keys", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
select scope, operation, 'another', fingerprint, status_code, content_type, location, body, expires_at
  from idempotency_keys
 where key = 'key-part'`, nil},
			{"a_refund_by_a_refused_request", `
update idempotency_keys
   set status_code = 409, location = '', content_type = 'application/problem+json', body = '{}'
 where key = 'key-part'`, nil},
		},
		"an answer names the charge that is to be canceled": {
			{"an_answer_about_a_charge_that_goes_on", `
update idempotency_keys
   set location = '/v1/charges/{sold}'
 where key = 'key-canceled-again'`, nil},
			{"a_cancellation_for_another_merchant", `update idempotency_keys set scope = 'globex' where key = 'key-canceled-again'`, nil},
			{"an_answer_with_another_cancellation", `update idempotency_keys set body = '{}' where key = 'key-canceled-again'`, nil},
		},
		canceled: {
			{"a_cancellation_under_no_key", `delete from idempotency_keys where operation like '%/cancel'`, nil},
		},
		"a refusal names nothing": {
			{"a_refusal_with_a_location", `update idempotency_keys set location = '/v1/charges/{sold}' where key = 'key-too-much'`, nil},
		},
	}
}
