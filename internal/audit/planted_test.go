package audit_test

import (
	"strconv"

	"github.com/payonce/payonce/domain"
)

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
drop index ledger_events_one_capture_per_reference, ledger_events_by_payment_intent;
drop index ledger_events_one_refund_outcome;
drop index ledger_events_one_refund_reversal;
drop index ledger_events_one_refund_per_reference;
drop index ledger_events_one_dispute;
`

// appendEvent adds an event at the end of a stream.
func appendEvent(charge, kind, data string) string {
	return `
insert into ledger_events (event_id, stream_id, version, type, schema_version, webhook, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), stream_id, max(version) + 1, '` + kind + `', 1, ` + strconv.FormatBool(domain.EventTypeNamed(kind).Webhook != "") + `, 'acme', '` + data + `', '{}', now()
  from ledger_events
 where stream_id = '{` + charge + `}'
 group by stream_id;`
}

// setData changes a member of the data of some events.
func setData(member, value, where string) string {
	return `update ledger_events set data = jsonb_set(data, '{` + member + `}', '` + value + `') where ` + where
}

// storedLocation is the Location of a stored answer.
const storedLocation = `(headers #>> '{Location,0}')`

// copyKey stores the answer to a key under another key, with a location.
func copyKey(key, location string) string {
	return `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, headers, body, expires_at)
select scope, operation, 'another', fingerprint, status_code, jsonb_build_object('Location', jsonb_build_array(` + location + `)), body, expires_at
  from idempotency_keys
 where key = '` + key + `'`
}

// setAnswered changes the status that the answer to a key shows.
func setAnswered(key, status string) string {
	return `
update idempotency_keys
   set body = decode(replace(encode(body, 'escape'), '"currency":"USD","status":"pending"', '"currency":"USD","status":"` + status + `"'), 'escape')
 where key = '` + key + `'`
}

const moreMugs = `update stock set supplied = supplied + 1, available = available + 1 where sku = 'mug'`

// unrecorded changes the stock without the record of an operator.
func unrecorded(change string) string {
	return `alter table stock disable trigger stock_supplied; ` + change + `; alter table stock enable trigger stock_supplied`
}

// plant breaks a check, and others that it cannot help breaking.
type plant struct {
	check, name, plant string
	also               []string
}

// The checks that several plants break.
const (
	legal        = "streams are legal"
	posted       = "postings are what the events cause"
	answers      = "an answer names what it accepted"
	oneKey       = "every request was accepted under one key"
	outcome      = "one outcome per charge, and one capture if it succeeded"
	booked       = "no payment or refund of the provider is booked twice"
	oneCharge    = "one charge per order, where that is wanted"
	deadlines    = "a charge fails for a deadline after it"
	charges      = "no accepted charge or refund is lost"
	refunds      = "a refund has one outcome, of its amount"
	exceed       = "refunds never exceed the capture"
	balances     = "balances have what the ledger has"
	trial        = "trial balance: debits equal credits in every currency"
	stock        = "stock is what was supplied, and what charges hold"
	reservations = "reservations are what the events say"
	messages     = "every request and outcome has its message"
	holders      = "a running message has a living holder"
	overdue      = "no message is overdue or a dead letter"
	notified     = "the merchant was notified once of every outcome"
)

var planted = []plant{
	{legal, "a missing version", `update ledger_events set version = 9 where stream_id = '{sold}' and type = 'merchant.notified.v1'`, nil},
	{legal, "a capture by another intent", setData("payment_intent", `"pi_x"`, `stream_id = '{sold}' and type = 'payment.started.v1'`), nil},
	{legal, "an event under another merchant", `update ledger_events set merchant_id = 'globex' where stream_id = '{sold}' and type = 'inventory.reserved.v1'`, nil},
	{legal, "a webhook event that is filed as none", `update ledger_events set webhook = false where stream_id = '{undelivered}' and type = 'charge.succeeded.v1'`, nil},
	{legal, "an event of an unknown type", appendEvent("sold", "charge.praised.v1", `{}`), nil},
	{legal, "an event that cannot be read", `update ledger_events set data = '{"payment_intent": 1}' where stream_id = '{paying}' and type = 'payment.started.v1'`, nil},
	{posted, "a fee that was not agreed", `update ledger_postings set amount = amount + case leg when 2 then 1 else -1 end where stream_id = '{sold}' and leg > 1`, nil},
	{posted, "postings under another merchant", `update ledger_postings set merchant_id = 'globex' where stream_id = '{fresh}'`, nil},
	{posted, "no postings at all", `delete from ledger_postings where stream_id = '{sold}'`, nil},
	{"one stored answer per key", "two answers to one key", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
select scope, operation, key, fingerprint, 422, body, expires_at
  from idempotency_keys
 where key = 'key-sold'`, nil},
	{answers, "an answer about no charge", copyKey("key-sold", "'/v1/charges/ch_none'"), nil},
	{answers, "an answer without a location", copyKey("key-sold", "''"), nil},
	{answers, "an answer to another merchant", `update idempotency_keys set scope = 'globex' where key = 'key-sold'`, nil},
	{answers, "an answer with another amount", `
update idempotency_keys
   set body = convert_to(replace(convert_from(body, 'UTF8'), '"amount":1000,', '"amount":10000,'), 'UTF8')
 where key = 'key-sold'`, nil},
	{answers, "an answer that says that it is paid", setAnswered("key-sold", "succeeded"), nil},
	{answers, "an answer that is no text", `update idempotency_keys set body = body || '\xff00' where key = 'key-sold'; ` + setAnswered("key-sold", "succeeded"), nil},
	{answers, "an answer that says that it is refunded", setAnswered("key-part", "succeeded"), nil},
	{answers, "an answer that says that it is canceled", setAnswered("key-canceled-again", "failed"), nil},
	{answers, "an answer with another charge", `update idempotency_keys set body = (select body from idempotency_keys where key = 'key-bought') where key = 'key-sold'`, nil},
	{oneKey, "a charge under no key", `delete from idempotency_keys where key = 'key-sold'`, nil},
	{oneKey, "a charge under two keys", copyKey("key-sold", storedLocation), nil},
	{oneKey, "all keys gone", `delete from idempotency_keys`, nil},
	{outcome, "a second capture", appendEvent("sold", "payment.captured.v1", `{"provider": "stripe", "payment_intent": "pi_x", "amount": 1000, "currency": "USD", "fee": 30}`), []string{posted, legal}},
	{booked, "an intent captured for two charges", setData("payment_intent", `"pi_sold"`, `stream_id = '{bought}' and type in ('payment.started.v1', 'payment.captured.v1')`), nil},
	{oneCharge, "an order that is free", `delete from held_orders where stream_id = '{sold}'`, nil},
	{oneCharge, "an order held without need", `insert into held_orders values ('acme', 'x', '{sold}')`, nil},
	{oneCharge, "an order held after a failure", `insert into held_orders values ('acme', 'declined', '{declined}')`, nil},
	{oneCharge, "an order charged twice", setData("order_id", `"sold"`, `stream_id = '{bought}' and version = 1`) + `;
delete from held_orders where stream_id = '{bought}'`, nil},
	{outcome, "a second outcome", appendEvent("refused", "charge.failed.v1", `{"code": "out_of_stock", "message": ""}`), []string{posted, legal}},
	{outcome, "a success without a capture", appendEvent("paying", "charge.succeeded.v1", `{}`), []string{"clearing accounts are empty after the outcome", reservations, messages, legal}},
	{outcome, "a capture without a success", appendEvent("paying", "payment.captured.v1", `{"provider": "stripe", "payment_intent": "pi_paying", "amount": 1000, "currency": "USD", "fee": 30}`), []string{posted}},
	{outcome, "a capture after the failure", appendEvent("declined", "payment.captured.v1", `{"provider": "stripe", "payment_intent": "pi_declined", "amount": 1000, "currency": "USD", "fee": 30}`), []string{posted, legal}},
	{legal, "a deadline that the charge does not have", setData("code", `"expired"`, `stream_id = '{declined}' and type = 'charge.failed.v1'`), nil},
	{deadlines, "a deadline that had not come", setData("code", `"expired"`, `stream_id = '{declined}' and type = 'charge.failed.v1'`) + `; ` +
		`update ledger_events set data = data || '{"expires_at": "2999-11-26T16:40:00Z"}' where stream_id = '{declined}' and version = 1`, nil},
	{charges, "a message done before the outcome", `update inbox set status = 'done', first = false, done_fence = fence where ordering_key = '{paying}'`, nil},
	{charges, "a message discarded before the outcome", `update inbox set status = 'discarded', first = false, decided_by = 'ann', decided_at = now() where ordering_key = '{paying}'`, nil},
	{charges, "a request without a message", `delete from outbox where metadata ->> 'ordering_key' = '{fresh}'`, []string{messages}},
	{"every posting belongs to an event", "a posting without an event", `insert into ledger_postings values ('{sold}', 99, 1, 'acme', 'psp_receivable:stripe:USD', 'merchant_payable:acme:USD', 1, 'USD')`, nil},
	{posted, "a posting across currencies", `update ledger_postings set credit = 'fee_revenue:payonce:EUR' where stream_id = '{sold}' and leg = 3`, nil},
	{posted, "an account of another owner", `update ledger_postings set credit = 'fee_revenue:globex:USD' where stream_id = '{sold}' and leg = 3`, nil},
	{"clearing accounts are empty after the outcome", "a receivable that stays open", `delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%'`, []string{posted}},
	{"clearing accounts are empty after the outcome", "a refund whose money never left", `delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`, []string{posted}},
	{"clearing accounts are empty after the outcome", "a pending refund that kept nothing back", `delete from ledger_postings where stream_id = '{refunded}' and credit like 'refund_clearing:%' and amount = 300`, []string{posted}},
	{stock, "stock out of nothing", `update stock set supplied = supplied - 1 where sku = 'mug'`, nil},
	{stock, "stock supplied without a record", unrecorded(moreMugs), nil},
	{stock, "stock supplied without a record before one with it", unrecorded(moreMugs) + `; ` + moreMugs, nil},
	{stock, "an article deleted without a record", unrecorded(`delete from stock where sku = 'mug'`), nil},
	{stock, "reserved stock without a reservation", `update stock set reserved = reserved + 1, available = available - 1 where sku = 'mug'`, nil},
	{stock, "sold stock without a reservation", `update stock set sold = sold + 1, available = available - 1 where sku = 'mug'`, nil},
	{reservations, "more held than reserved", `
update reservations set quantity = 3 where charge_id = '{paying}';
update stock set reserved = reserved + 1, available = available - 1 where sku = 'tshirt'`, nil},
	{reservations, "something held that was never reserved", `insert into reservations values ('{declined}', 'acme', 'mug', 1, 'released')`, nil},
	{reservations, "something reserved that is not held", `delete from reservations where charge_id = '{declined}'`, nil},
	{reservations, "stock given back too early", `
update reservations set status = 'released' where charge_id = '{paying}';
update stock set reserved = reserved - 2, available = available + 2 where sku = 'tshirt'`, nil},
	{reservations, "stock still held after the failure", `
update reservations set status = 'open' where charge_id = '{declined}';
update stock set reserved = reserved + 2, available = available - 2 where sku = 'tshirt'`, nil},
	{reservations, "a reservation without a charge", `insert into reservations values ('ch_none', 'acme', 'mug', 1, 'released')`, nil},
	{messages, "an outcome without a message", `delete from inbox where ordering_key = '{undelivered}' and type = 'charge.succeeded.v1'`, nil},
	{messages, "an outcome whose message only another subscriber has", `update inbox set receiver = 'points' where ordering_key = '{undelivered}' and type = 'charge.succeeded.v1'`, nil},
	{messages, "a refund's outcome without a message", appendEvent("refunded", "refund.failed.v1", `{"refund_id": "{returning}", "code": "provider_refused", "message": ""}`), []string{posted, "clearing accounts are empty after the outcome"}},
	{messages, "a cancellation without a message", appendEvent("paying", "charge.cancel_requested.v1", `{}`), []string{oneKey}},
	{"every message is an event of the ledger", "a message about nothing", `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence)
values ('fulfillment', 'nothing', 'ch_none', 'charge.requested.v1', '', '{}', '', 'done', 1, 1)`, nil},
	{"every message is an event of the ledger", "a message of another charge", `update inbox set ordering_key = '{bought}' where ordering_key = '{sold}' and type = 'charge.succeeded.v1'`, nil},
	{"every key with an open message has one that is first", "a message that nothing makes first", `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, received_at)
values ('fulfillment', 'evt_2', '{sold}', 'stripe.behind', '', '{}', '', now() - interval '1 hour');
update inbox set finished_at = now() - interval '1 minute' where ordering_key = '{sold}'; update inbox set due_at = '-infinity' where status = 'done'`, nil},
	{holders, "a message whose holder is silent", `update inbox_holders set alive_until = now() - interval '2 minutes' where receiver = 'fulfillment'`, nil},
	{holders, "a message whose holder is gone", `delete from inbox_holders; update inbox set claimed_at = now() - interval '2 minutes' where status = 'running'`, nil},
	{overdue, "a dead letter", `update inbox set status = 'dead' where ordering_key = '{paying}'`, nil},
	{overdue, "a due message that is not claimed", `update inbox set status = 'pending', due_at = now() - interval '2 minutes' where ordering_key = '{paying}'`, nil},
	{overdue, "a message that is due in a year", `update inbox set status = 'pending', due_at = now() + interval '1 year' where ordering_key = '{paying}'`, nil},
	{overdue, "a message that is not received", `update outbox set created_at = now() - interval '2 minutes' where metadata ->> 'ordering_key' = '{fresh}'`, nil},
	{"a finished message was finished by its holder", "a message finished by a zombie", `update inbox set fence = fence + 1 where ordering_key = '{sold}'`, nil},
	{"a finished message was finished by its holder", "a message finished without a fence", `update inbox set done_fence = null where ordering_key = '{sold}'`, nil},
	{notified, "an outcome delivered twice", `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), stream_id, version + 1, type, 1, merchant_id, data, metadata, now()
  from ledger_events
 where stream_id = '{sold}'
   and type = 'merchant.notified.v1'`, []string{legal}},
	{notified, "a delivery of no outcome", setData("event_id", `"00000000-0000-0000-0000-000000000000"`, `stream_id = '{sold}' and type = 'merchant.notified.v1'`), nil},
	{notified, "a delivery of the charge in place of the refund", `
update ledger_events
   set data = jsonb_set(data, '{event_id}', (select to_jsonb(event_id) from ledger_events where stream_id = '{refunded}' and type = 'charge.succeeded.v1'))
 where stream_id = '{refunded}' and data ->> 'type' = 'refund.failed'`, nil},
	{notified, "an outcome that was not delivered", `update inbox set status = 'done', first = false, done_fence = fence where ordering_key = '{undelivered}'`, nil},
	{legal, "a cancellation without a request", setData("code", `"canceled"`, `stream_id = '{declined}' and type = 'charge.failed.v1'`), nil},
	{legal, "a cancellation after the outcome", appendEvent("sold", "charge.cancel_requested.v1", `{}`), []string{oneKey}},
	{legal, "a second cancellation", appendEvent("canceled", "charge.cancel_requested.v1", `{}`), nil},
	{refunds, "a refund that failed too", appendEvent("refunded", "refund.failed.v1", `{"refund_id": "{part}", "code": "provider_refused", "message": ""}`), []string{messages, posted, legal}},
	{refunds, "an attempt at no refund", appendEvent("refunded", "refund.attempt_failed.v1", `{"refund_id": "re_none", "status_code": 500}`), []string{legal}},
	{refunds, "a refund requested twice", appendEvent("refunded", "refund.requested.v1", `{"refund_id": "{bounced}", "amount": 200, "notify": true}`), []string{legal}},
	{refunds, "a refund of another amount", setData("amount", `401`, `stream_id = '{refunded}' and type = 'refund.succeeded.v1' and data ->> 'refund_id' = '{part}'`), []string{posted, legal}},
	{refunds, "a refund reversed twice", appendEvent("refunded", "refund.reversed.v1", `{"refund_id": "{reversed}", "provider_refund": "re_reversed", "amount": 100}`), []string{messages, posted, legal}},
	{refunds, "a reversal of a pending refund", appendEvent("refunded", "refund.reversed.v1", `{"refund_id": "{returning}", "provider_refund": "re_x", "amount": 300}`), []string{messages, posted, legal}},
	{refunds, "a reversal by another refund", setData("provider_refund", `"re_x"`, `stream_id = '{refunded}' and type = 'refund.reversed.v1'`), []string{legal}},
	{booked, "a provider's refund booked twice", setData("provider_refund", `"re_part"`, `stream_id = '{refunded}' and data ->> 'refund_id' = '{reversed}' and type <> 'refund.requested.v1'`), []string{legal}},
	{exceed, "a refund of more than is left", setData("amount", `601`, `data ->> 'refund_id' = '{returning}'`) + `;
update ledger_postings set amount = 601 where stream_id = '{refunded}' and amount = 300`, []string{answers, posted, legal}},
	{exceed, "a refund of an open charge", appendEvent("paying", "refund.requested.v1", `{"refund_id": "re_early", "amount": 1, "notify": false}`), []string{messages, oneKey, charges, legal}},
	{charges, "a message done before the refund", `update inbox set status = 'done', first = false, done_fence = fence where ordering_key = '{returning}'`, nil},
	{charges, "a refund whose own message is done, behind which another one waits", `
update inbox set status = 'done', first = false, done_fence = fence where ordering_key = '{returning}';
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, first)
values ('fulfillment', 'evt_3', '{returning}', 'stripe.refund.updated', '', '{}', '', true)`, nil},
	{"every message is an event of the ledger", "a refund's message in the order of its charge", `update inbox set ordering_key = '{refunded}' where ordering_key = '{returning}'`, nil},
	{charges, "a refund whose message is gone", `
delete from outbox where metadata ->> 'type' = 'refund.requested.v1';
delete from inbox where type = 'refund.requested.v1'`, []string{messages}},
	{answers, "an answer about no refund", copyKey("key-part", storedLocation+" || 'x'"), nil},
	{answers, "a refund for another merchant", `update idempotency_keys set scope = 'globex' where key = 'key-part'`, nil},
	{answers, "an answer with another refund", `update idempotency_keys set body = (select body from idempotency_keys where key = 'key-bounced') where key = 'key-part'`, nil},
	{oneKey, "a refund under no key", `delete from idempotency_keys where key = 'key-part'`, nil},
	{oneKey, "a refund under two keys", copyKey("key-part", storedLocation), nil},
	{oneKey, "a refund by a refused request", `update idempotency_keys set status_code = 409, headers = '{}', body = '{}' where key = 'key-part'`, nil},
	{answers, "an answer about a charge that goes on", `update idempotency_keys set headers = '{"Location":["/v1/charges/{sold}"]}' where key = 'key-canceled-again'`, nil},
	{answers, "a cancellation for another merchant", `update idempotency_keys set scope = 'globex' where key = 'key-canceled-again'`, nil},
	{answers, "an answer with another cancellation", `update idempotency_keys set body = '{}' where key = 'key-canceled-again'`, nil},
	{oneKey, "a cancellation under no key", `delete from idempotency_keys where operation like '%/cancel'`, nil},
	{answers, "a refusal with a location", `update idempotency_keys set headers = '{"Location":["/v1/charges/{sold}"]}' where key = 'key-too-much'`, nil},
}

// plantedInBalances need balances that are up to date.
var plantedInBalances = []plant{
	{balances, "a follower beyond what was added", `
delete from account_balances;
update followers set position = position + 100 where name = 'balances'`, []string{trial}},
	{balances, "sums of events that were not read", `update followers set txid = '0', position = 0 where name = 'balances'`, []string{trial}},
	{balances, "money that was never posted", `update account_balances set debits = debits + 1 where account = 'psp_receivable:stripe:USD'`, []string{trial}},
	{balances, "an account that was left out", `delete from account_balances where account = 'fee_revenue:payonce:USD'`, []string{trial}},
	{balances, "an account without postings", `insert into account_balances values ('globex', 'merchant_payable:globex:USD', 1, 1)`, []string{trial}},
	{trial, "a credit without its debit", `update account_balances set credits = credits + 1 where account = 'fee_revenue:payonce:USD'`, []string{balances}},
	{trial, "a debit and a credit that were never posted", `
update account_balances set debits = debits + 1 where account = 'psp_receivable:stripe:USD';
update account_balances set credits = credits + 1 where account = 'fee_revenue:payonce:USD'`, []string{balances}},
	{trial, "a posting in another currency than its accounts", `update ledger_postings set currency = 'EUR' where stream_id = '{sold}' and leg = 3`, []string{posted}},
}
