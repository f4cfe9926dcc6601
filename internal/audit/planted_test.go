package audit_test

import "maps"

// breakable takes the schema's own guards away, as if they had never been there.
const breakable = `
alter table ledger_events   disable trigger ledger_events_append_only;
alter table ledger_postings disable trigger ledger_postings_append_only;
alter table ledger_events   drop constraint ledger_events_previous_exists;
alter table ledger_postings drop constraint ledger_postings_one_currency;
alter table idempotency_keys drop constraint idempotency_keys_once;
alter table stock drop constraint stock_adds_up;
alter table inbox drop constraint inbox_done_by_holder;
alter table inbox drop constraint inbox_done_has_fence;
drop index ledger_events_one_capture;
drop index ledger_events_one_outcome;
drop index ledger_events_one_capture_per_reference;
drop index ledger_events_one_refund_outcome;
drop index ledger_events_one_refund_reversal;
drop index ledger_events_one_refund_per_reference;
`

// appendEvent adds an event at the end of a stream.
func appendEvent(charge, kind, data string) string {
	return `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), stream_id, max(version) + 1, '` + kind + `', 1, 'acme', '` + data + `', '{}', now()
  from ledger_events
 where stream_id = '{` + charge + `}'
 group by stream_id;`
}

// plant is a violation: what breaks the check under whose name it stands, and
// what else it cannot help breaking.
type plant struct {
	name  string
	plant string
	also  []string
}

func planted() map[string][]plant {
	all := map[string][]plant{}
	maps.Copy(all, plantedInCharges())
	maps.Copy(all, plantedInRefunds())
	maps.Copy(all, plantedInProjections())
	return all
}

func plantedInCharges() map[string][]plant {
	return map[string][]plant{
		"streams have no gap": {
			{"a_missing_version", `update ledger_events set version = 9 where stream_id = '{sold}' and type = 'merchant.notified.v1'`, nil},
		},
		"streams are legal": {
			{"a_capture_by_another_intent", `update ledger_events set data = jsonb_set(data, '{payment_intent}', '"pi_x"') where stream_id = '{sold}' and type = 'payment.started.v1'`, nil},
			{"an_event_under_another_merchant", `update ledger_events set merchant_id = 'globex' where stream_id = '{sold}' and type = 'inventory.reserved.v1'`, nil},
			{"an_event_of_an_unknown_type", appendEvent("sold", "charge.praised.v1", `{}`), nil},
			{"an_event_that_cannot_be_read", `update ledger_events set data = '{"payment_intent": 1}' where stream_id = '{paying}' and type = 'payment.started.v1'`, nil},
		},
		"postings are what the events cause": {
			{"a_fee_that_was_not_agreed", `update ledger_postings set amount = amount + case leg when 2 then 1 else -1 end where stream_id = '{sold}' and leg > 1`, nil},
			{"postings_under_another_merchant", `update ledger_postings set merchant_id = 'globex' where stream_id = '{fresh}'`, []string{"every account is one of the chart"}},
			{"no_postings_at_all", `delete from ledger_postings where stream_id = '{sold}'`, nil},
		},
		"one stored answer per key": {
			{"two_answers_to_one_key", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
select scope, operation, key, fingerprint, 422, content_type, body, expires_at
  from idempotency_keys
 where key = 'key-sold'`, nil},
		},
		"an answer names the charge that it accepted": {
			{"an_answer_about_no_charge", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
select scope, operation, 'another', fingerprint, status_code, content_type, '/v1/charges/ch_none', body, expires_at
  from idempotency_keys
 where key = 'key-sold'`, nil},
			{"an_answer_without_a_location", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
select scope, operation, 'another', fingerprint, status_code, content_type, body, expires_at
  from idempotency_keys
 where key = 'key-sold'`, nil},
			{"an_answer_to_another_merchant", `update idempotency_keys set scope = 'globex' where key = 'key-sold'`, nil},
			{"an_answer_with_another_amount", `
update idempotency_keys
   set body = convert_to(replace(convert_from(body, 'UTF8'), '"amount":1000,', '"amount":10000,'), 'UTF8')
 where key = 'key-sold'`, nil},
			{"an_answer_with_another_charge", `update idempotency_keys set body = (select body from idempotency_keys where key = 'key-bought') where key = 'key-sold'`, nil},
		},
		"every charge was accepted under one key": {
			{"a_charge_under_no_key", `delete from idempotency_keys where key = 'key-sold'`, nil},
			{"a_charge_under_two_keys", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
select scope, operation, 'another', fingerprint, status_code, content_type, location, body, expires_at
  from idempotency_keys
 where key = 'key-sold'`, nil},
			{"all_keys_gone", `delete from idempotency_keys`, []string{
				"every cancellation was accepted under a key", "every refund was accepted under one key",
			}},
		},
		"one capture per charge": {
			{"a_second_capture", appendEvent("sold", "payment.captured.v1", `{"provider": "stripe", "payment_intent": "pi_x", "amount": 1000, "currency": "USD", "fee": 30}`), []string{
				"postings are what the events cause", "streams are legal",
			}},
		},
		"one charge per captured payment intent": {
			{"an_intent_captured_for_two_charges", `
update ledger_events
   set data = jsonb_set(data, '{payment_intent}', '"pi_sold"')
 where stream_id = '{bought}'
   and type in ('payment.started.v1', 'payment.captured.v1')`, nil},
		},
		"one outcome per charge": {
			{"a_second_outcome", appendEvent("refused", "charge.failed.v1", `{"code": "out_of_stock", "message": ""}`), []string{
				"every request and outcome has its message", "postings are what the events cause", "streams are legal",
			}},
		},
		"a charge succeeded exactly if it was captured": {
			{"a_success_without_a_capture", appendEvent("paying", "charge.succeeded.v1", `{}`), []string{
				"clearing accounts are empty after the outcome", "a reservation follows its charge's outcome",
				"every request and outcome has its message", "streams are legal",
			}},
			{"a_capture_without_a_success", appendEvent("paying", "payment.captured.v1", `{"provider": "stripe", "payment_intent": "pi_paying", "amount": 1000, "currency": "USD", "fee": 30}`), []string{
				"postings are what the events cause",
			}},
		},
		"a failed charge was not captured": {
			{"a_capture_after_the_failure", appendEvent("declined", "payment.captured.v1", `{"provider": "stripe", "payment_intent": "pi_declined", "amount": 1000, "currency": "USD", "fee": 30}`), []string{
				"a charge succeeded exactly if it was captured", "postings are what the events cause", "streams are legal",
			}},
		},
		"no accepted charge is lost": {
			{"a_message_done_before_the_outcome", `update inbox set status = 'done', done_fence = fence where ordering_key = '{paying}'`, nil},
			{"a_message_discarded_before_the_outcome", `
update inbox
   set status = 'discarded', decided_by = 'ann', decided_at = now()
 where ordering_key = '{paying}'`, nil},
			{"a_request_without_a_message", `delete from outbox where metadata ->> 'ordering_key' = '{fresh}'`, []string{
				"every request and outcome has its message",
			}},
			{"a_request_that_the_reader_passed_over", `update outbox_offsets set transaction_id = (select max(transaction_id) from outbox), "offset" = (select max("offset") from outbox)`, []string{
				"every message that was passed was received",
			}},
		},
		"every posting belongs to an event": {
			{"a_posting_without_an_event", `insert into ledger_postings values ('{sold}', 99, 1, 'acme', 'psp_receivable:stripe:USD', 'merchant_payable:acme:USD', 1, 'USD')`, nil},
		},
		"the books balance in every currency": {
			{"a_posting_across_currencies", `update ledger_postings set credit = 'fee_revenue:payonce:EUR' where stream_id = '{sold}' and leg = 3`, []string{
				"every account is one of the chart", "postings are what the events cause",
			}},
		},
		"every account is one of the chart": {
			{"an_account_of_another_owner", `update ledger_postings set credit = 'fee_revenue:globex:USD' where stream_id = '{sold}' and leg = 3`, []string{
				"postings are what the events cause",
			}},
		},
		"clearing accounts are empty after the outcome": {
			{"a_receivable_that_stays_open", `delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%'`, []string{
				"postings are what the events cause",
			}},
			{"a_refund_whose_money_never_left", `delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`, []string{
				"postings are what the events cause",
			}},
			{"a_pending_refund_that_kept_nothing_back", `delete from ledger_postings where stream_id = '{refunded}' and credit like 'refund_clearing:%' and amount = 300`, []string{
				"postings are what the events cause",
			}},
		},
		"stock adds up to what was supplied": {
			{"stock_out_of_nothing", `update stock set supplied = supplied - 1 where sku = 'mug'`, nil},
		},
		"reserved stock is held by charges": {
			{"reserved_stock_without_a_reservation", `update stock set reserved = reserved + 1, available = available - 1 where sku = 'mug'`, nil},
		},
		"sold stock was taken by charges": {
			{"sold_stock_without_a_reservation", `update stock set sold = sold + 1, available = available - 1 where sku = 'mug'`, nil},
		},
		"a charge holds what it reserved": {
			{"more_held_than_reserved", `
update reservations set quantity = 3 where charge_id = '{paying}';
update stock set reserved = reserved + 1, available = available - 1 where sku = 'tshirt'`, nil},
			{"something_held_that_was_never_reserved", `insert into reservations values ('{declined}', 'acme', 'mug', 1, 'released')`, nil},
			{"something_reserved_that_is_not_held", `delete from reservations where charge_id = '{declined}'`, nil},
		},
		"a reservation follows its charge's outcome": {
			{"stock_given_back_too_early", `
update reservations set status = 'released' where charge_id = '{paying}';
update stock set reserved = reserved - 2, available = available + 2 where sku = 'tshirt'`, nil},
			{"stock_still_held_after_the_failure", `
update reservations set status = 'open' where charge_id = '{declined}';
update stock set reserved = reserved + 2, available = available - 2 where sku = 'tshirt'`, nil},
			{"a_reservation_without_a_charge", `insert into reservations values ('ch_none', 'acme', 'mug', 1, 'released')`, []string{
				"a charge holds what it reserved",
			}},
		},
		"every request and outcome has its message": {
			{"an_outcome_without_a_message", `
delete from outbox where message_id in (select event_id::text from ledger_events where stream_id = '{refunded}' and type = 'charge.succeeded.v1');
delete from inbox where ordering_key = '{refunded}' and type = 'charge.succeeded.v1'`, nil},
			{"an_outcome_whose_message_went_before_its_time", `
delete from outbox;
delete from inbox where ordering_key = '{undelivered}' and type = 'charge.succeeded.v1'`, []string{
				"no accepted charge is lost", // fresh: its message was in the outbox only
			}},
			{"a_refund's_outcome_without_a_message", `
delete from outbox where message_id in (select event_id::text from ledger_events where type = 'refund.reversed.v1');
delete from inbox where type = 'refund.reversed.v1'`, nil},
			{"a_cancellation_without_a_message", `
delete from outbox where metadata ->> 'type' = 'charge.cancel_requested.v1';
delete from inbox where type = 'charge.cancel_requested.v1'`, nil},
		},
		"every message is an event of the ledger": {
			{"a_message_about_nothing", `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence)
values ('fulfillment', 'nothing', 'ch_none', 'charge.requested.v1', '', '{}', '', 'done', 1, 1)`, nil},
			{"a_message_of_another_charge", `update inbox set ordering_key = '{bought}' where ordering_key = '{sold}' and type = 'charge.succeeded.v1'`, nil},
			{"a_message_committed_apart", `update outbox set transaction_id = '3' where message_id in (select event_id::text from ledger_events where stream_id = '{sold}')`, nil},
		},
		"every message that was passed was received": {
			{"a_message_acked_and_not_received", `delete from inbox where ordering_key = '{sold}' and type = 'charge.succeeded.v1'`, nil},
		},
		"no message is stuck": {
			{"a_parked_message", `update inbox set status = 'dead' where ordering_key = '{paying}'`, nil},
			{"a_due_message_that_is_not_claimed", `update inbox set status = 'pending', due_at = now() - interval '2 minutes' where ordering_key = '{paying}'`, nil},
			{"a_lease_that_is_not_taken_over", `update inbox set due_at = now() - interval '2 minutes' where ordering_key = '{paying}'`, nil},
			{"a_message_that_is_not_received", `update outbox set created_at = now() - interval '2 minutes' where metadata ->> 'ordering_key' = '{fresh}'`, nil},
		},
		"a finished message was finished by its holder": {
			{"a_message_finished_by_a_zombie", `update inbox set fence = fence + 1 where ordering_key = '{sold}'`, nil},
			{"a_message_finished_without_a_fence", `update inbox set done_fence = null where ordering_key = '{sold}'`, nil},
		},
		"nothing is in quarantine": {
			{"a_known_message_with_another_payload", `
insert into inbox_quarantine (receiver, message_id, payload, metadata, payload_hash)
select receiver, message_id, 'x', metadata, 'x' from inbox where ordering_key = '{sold}'`, nil},
			{"a_quarantine_whose_first_message_is_gone", `
insert into inbox_quarantine (receiver, message_id, payload, metadata, payload_hash)
values ('fulfillment', 'gone', 'x', '{}', 'x')`, nil},
		},
		"the merchant was told once of every outcome": {
			{"an_outcome_delivered_twice", `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), stream_id, version + 1, type, 1, merchant_id, data, metadata, now()
  from ledger_events
 where stream_id = '{sold}'
   and type = 'merchant.notified.v1'`, []string{"streams are legal"}},
			{"a_delivery_of_no_outcome", `
update ledger_events
   set data = jsonb_set(data, '{event_id}', '"00000000-0000-0000-0000-000000000000"')
 where stream_id = '{sold}'
   and type = 'merchant.notified.v1'`, nil},
			{"a_delivery_of_the_charge_in_place_of_the_refund", `
update ledger_events
   set data = jsonb_set(data, '{event_id}', (select to_jsonb(event_id) from ledger_events where stream_id = '{refunded}' and type = 'charge.succeeded.v1'))
 where stream_id = '{refunded}'
   and data ->> 'type' = 'refund.failed'`, nil},
			{"an_outcome_that_was_not_delivered", `update inbox set status = 'done', done_fence = fence where ordering_key = '{undelivered}'`, nil},
		},
	}
}
