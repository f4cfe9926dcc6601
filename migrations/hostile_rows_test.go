package migrations_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/domain"
)

// row is a row to insert: an expression for each column.
type row map[string]string

// but returns the row with other expressions: a column and its expression, and so on.
func (r row) but(changes ...string) row {
	changed := maps.Clone(r)
	for i := 0; i < len(changes); i += 2 {
		changed[changes[i]] = changes[i+1]
	}
	return changed
}

func (r row) insert(table string) string {
	columns := slices.Sorted(maps.Keys(r))
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = r[c]
	}
	return fmt.Sprintf("insert into %s (%s) values (%s)", table, strings.Join(columns, ", "), strings.Join(values, ", "))
}

// history is what the worker and earlier requests have left: a charge that succeeded, of
// each of two merchants, with a refund that is requested, and charges that are pending.
const history = `
insert into merchants (merchant_id) values ('acme'), ('globex');
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select overlay(md5(m || v)::uuid::text placing '8' from 15)::uuid, 'ch_' || m, v, type, 1, m, data::jsonb || jsonb_build_object('merchant_id', m), '{}', now()
  from unnest(array['acme', 'globex']) m
 cross join (values (1, 'charge.requested.v1', '{"amount":1000,"currency":"USD"}'),
                    (2, 'payment.captured.v1', '{"amount":1000}'),
                    (3, 'charge.succeeded.v1', '{}'),
                    (4, 'refund.requested.v1', '{"refund_id":"re_1","amount":400}'),
                    (5, 'charge.cancel_requested.v1', '{}')) e(v, type, data);
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_pending', 1, 'charge.requested.v1', 1, 'acme', '{"merchant_id":"acme","amount":1000,"currency":"USD"}', '{}', now()),
       (gen_random_uuid(), 'ch_canceling', 1, 'charge.requested.v1', 1, 'acme', '{"merchant_id":"acme","amount":1000,"currency":"USD"}', '{}', now()),
       (gen_random_uuid(), 'ch_canceling', 2, 'charge.cancel_requested.v1', 1, 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_earlier', 1, 'charge.requested.v1', 1, 'acme', '{"order_id":"1","one_charge_per_order":true}', '{}', now());
`

// The rows that requests and the provider's webhook insert, for acme.
var (
	requested = row{
		"event_id": "'11111111-1111-8111-8111-111111111111'", "stream_id": "'ch_new'", "version": "1", "type": "'charge.requested.v1'",
		"schema_version": "1", "merchant_id": "'acme'", "data": `'{"merchant_id":"acme","order_id":"1","amount":500,"currency":"USD","reference":"ref_822b33ad87c148a00","steps":["payment"]}'`,
		"metadata": `'{"actor":"api"}'`, "occurred_at": "now()",
	}
	canceled = requested.but("stream_id", "'ch_pending'", "version", "2", "type", "'charge.cancel_requested.v1'", "data", "'{}'")
	refund   = requested.but("stream_id", "'ch_acme'", "version", "6", "type", "'refund.requested.v1'", "data", back("re_2", 600))
	owed     = row{
		"stream_id": "'ch_acme'", "version": "1", "leg": "1", "merchant_id": "'acme'", "debit": "'customer_receivable:acme:USD'",
		"credit": "'merchant_pending:acme:USD'", "amount": "1000", "currency": "'USD'",
	}
	held     = row{"merchant_id": "'acme'", "order_id": "'1'", "stream_id": "'ch_new'"}
	alone    = requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":500,"currency":"USD","reference":"ref_822b33ad87c148a00","steps":["payment"],"one_charge_per_order":true}'`)
	returned = owed.but("version", "4", "debit", "'merchant_payable:acme:USD'", "credit", "'refund_clearing:acme:USD'", "amount", "400")
	wake     = row{
		"topic": "'charges'", "message_id": eventID("acme", 4), "payload": sealed("acme", 4, "refund.requested.v1"),
		"metadata": `'{"type":"refund.requested.v1","ordering_key":"re_1","partition_key":"acme"}'`,
	}
	answered = row{
		"scope": "'acme'", "operation": "'POST /v1/charges'", "key": "'k1'", "fingerprint": "''", "status_code": "202",
		"body": "'{}'", "expires_at": "now()",
	}
	provided = row{"topic": "'charges'", "message_id": "'evt_1'", "payload": "'{}'", "metadata": providers("stripe.refund.updated", "ch_acme", "acme")}
)

// Values that no reader can hold many of. What a table has compressed is smaller than it will be.
const (
	megabytes    = `jsonb_build_object('type', 'refund.requested.v1', 'ordering_key', 'ch_acme', 'partition_key', 'acme', 'actor', 'api', 'x', repeat('x', 9999999))`
	compressed   = `(select packed from large)`
	compressThem = `create temporary table large as select ` + megabytes + ` as packed`
)

// The longest texts that a program writes with a refund: 255 characters that JSON escapes, and ids.
const (
	longest      = `jsonb_build_object('refund_id', 're_' || repeat('x', 61), 'amount', 1, 'notify', true, 'reason', repeat(e'\x01', 255))`
	longestCause = `jsonb_build_object('actor', 'api', 'correlation_id', repeat('x', 128), 'causation_id', repeat('x', 128), 'api_key', repeat('x', 64), 'client', repeat('x', 64))`
)

// providers is the metadata of an event of the provider.
func providers(kind, charge, merchant string) string {
	return fmt.Sprintf(`'{"type":"%s","ordering_key":"%s","partition_key":"%s"}'`, kind, charge, merchant)
}

func eventID(merchant string, version int) string {
	return fmt.Sprintf("overlay(md5('%s%d')::uuid::text placing '8' from 15)", merchant, version)
}

func sealed(merchant string, version int, kind string) string {
	return fmt.Sprintf(`convert_to(format('{"id":"%%s","type":"%s","charge_id":"ch_%s","version":%d}', %s), 'UTF8')`, kind, merchant, version, eventID(merchant, version))
}

// limited is a charge with a return_url and an expires_at.
func limited(returnURL, expiresAt string) row {
	return requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":500,"currency":"USD","reference":"ref_822b33ad87c148a00","steps":["payment"],"return_url":`+returnURL+`,"expires_at":`+expiresAt+`}'`)
}

// charge and returning are requests that the program writes with every member.
func charge() domain.ChargeRequested {
	owner := sha256.Sum256([]byte("acme"))
	return domain.ChargeRequested{
		MerchantID: "acme", OrderID: "1", Amount: 500, Currency: "USD", Fee: 500, PaymentMethod: "pm_card_visa", Customer: "cus_ada",
		Items:       []domain.Item{{SKU: "mug", Quantity: 2}, {SKU: "tshirt", Quantity: 1000000}},
		Description: "a mug", Metadata: map[string]string{"basket": "7"},
		ReturnURL: "https://shop.example", ExpiresAt: time.Date(2999, 11, 26, 16, 40, 0, 5e8, time.FixedZone("", 3600)),
		Notify: true, OneChargePerOrder: true, Reference: "ref_" + hex.EncodeToString(owner[:])[:16] + "0",
		Steps: []string{"inventory", "payment"}, Skipped: []string{"inventory"},
	}
}

func returning() domain.RefundRequested {
	return domain.RefundRequested{RefundID: "re_2", Amount: 600, Reason: "broken", Notify: true}
}

// encoded is the data of an event, which must have all of its members.
func encoded(e domain.Event) string {
	for field, value := range reflect.ValueOf(e).Fields() {
		if value.IsZero() {
			panic("say what a request writes as " + field.Name)
		}
	}
	data, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return "'" + string(data) + "'::jsonb"
}

func changed(e domain.Event, members string) string { return encoded(e) + " || '" + members + "'" }

func back(id string, amount int64) string {
	return fmt.Sprintf(`'{"refund_id":"%s","amount":%d}'`, id, amount)
}

// mistyped are the requests with one member of another type each, or with one more member.
func mistyped(name string, r row, e domain.Event) map[string]row {
	rows := map[string]row{}
	var members map[string]any
	data, _ := json.Marshal(e)
	if err := json.Unmarshal(data, &members); err != nil {
		panic(err)
	}
	members["x"] = nil
	for member, is := range members {
		for value, other := range map[string]any{
			"null": nil, `"x"`: "", "1": 1.0, "true": true, "[]": []any{}, "{}": map[string]any{},
		} {
			if member == "x" || reflect.TypeOf(is) != reflect.TypeOf(other) {
				rows[name+" whose "+member+" is "+value] = r.but("data", changed(e, fmt.Sprintf(`{"%s":%s}`, member, value)))
			}
		}
	}
	return rows
}

// before is what a request inserts before its row of a table.
var before = map[string]string{"held_orders": alone.insert("ledger_events")}

// inserts are, for each table that the api may insert into, what a request causes and what
// an attacker would add instead.
func inserts() map[string]struct{ caused, forged map[string]row } {
	capitals := strings.NewReplacer(wake["message_id"], "upper("+wake["message_id"]+")")
	type cases = struct{ caused, forged map[string]row }
	events := cases{
		map[string]row{
			"a charge":                            requested,
			"a charge with every member":          requested.but("data", encoded(charge())),
			"a charge with a page and a deadline": limited(`"https://shop.example"`, `"2999-11-26T16:40:00.5Z"`),
			"a cancellation":                      canceled,
			"a refund":                            refund,
			"a refund with every member":          refund.but("data", encoded(returning())),
			"a refund of the longest texts":       refund.but("data", longest, "metadata", longestCause),
		},
		map[string]row{
			"of an unknown type":                     canceled.but("type", "'charge.exploded.v1'"),
			"of a newer version":                     canceled.but("type", "'charge.cancel_requested.v2'"),
			"of a newer schema":                      canceled.but("schema_version", "2"),
			"a charge in the middle":                 requested.but("stream_id", "'ch_acme'", "version", "6"),
			"a refund of nothing":                    refund.but("stream_id", "'ch_new'", "version", "1"),
			"for another merchant":                   requested.but("merchant_id", "'globex'"),
			"a charge whose data is another's":       requested.but("data", `'{"merchant_id":"globex","order_id":"1","amount":500,"currency":"USD","reference":"ref_822b33ad87c148a00","steps":["payment"]}'`),
			"a charge whose data names no merchant":  requested.but("data", `'{}'`),
			"a charge of no number":                  requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":"much","currency":"USD"}'`),
			"a charge of too large a number":         requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":1e30,"currency":"USD"}'`),
			"a charge of more than may be charged":   requested.but("data", changed(charge(), `{"amount":1000000000001}`)),
			"a charge of nothing":                    requested.but("data", changed(charge(), `{"amount":0}`)),
			"a charge of half a cent":                requested.but("data", changed(charge(), `{"amount":500.5}`)),
			"a charge whose fee is more":             requested.but("data", changed(charge(), `{"fee":501}`)),
			"a charge whose fee is below zero":       requested.but("data", changed(charge(), `{"fee":-1}`)),
			"a charge that names a member otherwise": requested.but("data", changed(charge(), `{"Amount":1}`)),
			"a charge of an item that is none":       requested.but("data", changed(charge(), `{"items":[5]}`)),
			"a charge of a list in a list":           requested.but("data", changed(charge(), `{"items":[[{"sku":"mug","quantity":1}]]}`)),
			"a charge of an item without a name":     requested.but("data", changed(charge(), `{"items":[{"sku":null,"quantity":1}]}`)),
			"a charge of an item with more":          requested.but("data", changed(charge(), `{"items":[{"sku":"mug","quantity":1,"x":1}]}`)),
			"a charge of half an item":               requested.but("data", changed(charge(), `{"items":[{"sku":"mug","quantity":0.5}]}`)),
			"a charge of no item":                    requested.but("data", changed(charge(), `{"items":[{"sku":"mug","quantity":0}]}`)),
			"a charge of an item without a quantity": requested.but("data", changed(charge(), `{"items":[{"sku":"mug"}]}`)),
			"a charge of a number of many digits":    requested.but("data", changed(charge(), `{"items":[{"sku":"mug","quantity":1e99999}]}`)),
			"a charge whose metadata is no text":     requested.but("data", changed(charge(), `{"metadata":{"basket":7}}`)),
			"a charge whose steps are no names":      requested.but("data", changed(charge(), `{"steps":[5]}`)),
			"a charge without a payment":             requested.but("data", changed(charge(), `{"steps":["inventory"]}`)),
			"a charge without a reference":           requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":500,"currency":"USD","steps":["payment"]}'`),
			"a charge whose steps are no names now":  requested.but("data", changed(charge(), `{"skipped":[{}]}`)),
			"a deadline in words":                    limited(`"https://shop.example"`, `"tomorrow"`),
			"a deadline at an hour that is none":     limited(`"https://shop.example"`, `"2999-11-26T24:00:00Z"`),
			"a cancellation with a member":           canceled.but("data", `'{"x":1}'`),
			"a cancellation of a captured charge":    canceled.but("stream_id", "'ch_acme'", "version", "6"),
			"a second cancellation":                  canceled.but("stream_id", "'ch_canceling'", "version", "3"),
			"a cancellation of several kilobytes":    canceled.but("metadata", `jsonb_build_object('actor', 'api', 'x', repeat('x', 4096))`),
			"a refund of no number":                  refund.but("data", `'{"refund_id":"re_2","amount":null}'`),
			"a refund of a pending charge":           refund.but("stream_id", "'ch_pending'", "version", "2", "data", back("re_2", 1)),
			"a refund of more than was captured":     refund.but("data", back("re_2", 1001)),
			"a refund of more than is left":          refund.but("data", back("re_2", 601)),
			"a refund of 10^17":                      refund.but("data", back("re_2", 1e17)),
			"a refund that is requested already":     refund.but("data", back("re_1", 1)),
			"a refund without a name":                refund.but("data", back("", 1)),
			"a refund that names a member otherwise": refund.but("data", changed(returning(), `{"AMOUNT":1}`)),
			"a refund in the order of a charge":      refund.but("data", back("ch_globex", 1)),
			"a charge of an article twice":           requested.but("data", changed(charge(), `{"items":[{"sku":"mug","quantity":1},{"sku":"mug","quantity":2}]}`)),
			"an event about which a webhook is sent": requested.but("webhook", "true"),
			"a refund with a long reason":            refund.but("data", `jsonb_build_object('refund_id', 're_2', 'amount', 1, 'reason', repeat('x', 4096))`),
			"a refund of a long cause":               refund.but("metadata", `jsonb_build_object('actor', 'api', 'x', repeat('x', 4096))`),
			"a refund of a cause of many digits":     refund.but("metadata", `'{"actor":"api","x":1e9999}'`),
			"an order that fits in no index":         requested.but("data", `jsonb_build_object('merchant_id', 'acme', 'amount', 500, 'order_id', repeat('x', 9999))`),
			"a page of another scheme":               limited(`"javascript:alert(1)"`, `null`),
			"a page of many letters":                 requested.but("data", `jsonb_build_object('merchant_id', 'acme', 'amount', 500, 'order_id', '1', 'return_url', 'https://' || repeat('x', 9999))`),
			"a deadline that is no time":             limited(`null`, `"soon"`),
			"a deadline of long ago":                 limited(`null`, `"1999-11-26T16:40:00Z"`),
			"a deadline that no reader can show":     limited(`null`, `"infinity"`),
			"of many megabytes":                      canceled.but("data", megabytes),
			"of many megabytes, compressed":          canceled.but("data", compressed),
			"whose cause has many, compressed":       canceled.but("metadata", compressed),
			"of a stream with a long name":           requested.but("stream_id", "repeat('x', 99)"),
			"in the name of the worker":              canceled.but("metadata", `'{"actor":"worker"}'`),
			"a cancellation without an actor":        canceled.but("metadata", `'{}'`),
			"under the id of an event of the worker": canceled.but("event_id", "'11111111-1111-5111-8111-111111111111'"),
			"that never happened":                    canceled.but("occurred_at", "'infinity'"),
			"of long ago":                            canceled.but("occurred_at", "'-infinity'"),
			"of next year":                           canceled.but("occurred_at", "now() + interval '1 year'"),
		},
	}
	maps.Copy(events.forged, mistyped("a charge", requested, charge()))
	maps.Copy(events.forged, mistyped("a refund", refund, returning()))
	for _, kind := range domain.EventTypes() {
		if !kind.Request {
			events.forged["a "+kind.Name] = canceled.but("type", "'"+kind.Name+"'")
			events.forged["a first "+kind.Name] = requested.but("type", "'"+kind.Name+"'")
		}
	}
	return map[string]cases{
		"ledger_events": events,
		"ledger_postings": {
			map[string]row{"of a charge": owed, "of a refund": returned},
			map[string]row{
				"a second leg":              owed.but("leg", "2"),
				"of another amount":         owed.but("amount", "1001"),
				"in another currency":       owed.but("currency", "'EUR'", "debit", "'customer_receivable:acme:EUR'", "credit", "'merchant_pending:acme:EUR'"),
				"a refund in another":       returned.but("currency", "'EUR'", "debit", "'merchant_payable:acme:EUR'", "credit", "'refund_clearing:acme:EUR'"),
				"from another account":      owed.but("debit", "'psp_receivable:stripe:USD'"),
				"to another account":        owed.but("credit", "'merchant_payable:acme:USD'"),
				"to another merchant":       owed.but("credit", "'merchant_pending:globex:USD'"),
				"for another merchant":      owed.but("merchant_id", "'globex'"),
				"on another's charge":       owed.but("stream_id", "'ch_globex'"),
				"of an outcome":             owed.but("version", "3"),
				"of a cancellation":         owed.but("version", "5"),
				"of a version to come":      owed.but("version", "9"),
				"of a charge that is none":  owed.but("stream_id", "'ch_none'"),
				"a refund by its charge":    owed.but("version", "4", "amount", "400"),
				"a charge by its refund":    returned.but("version", "1", "amount", "1000"),
				"a refund of another's sum": returned.but("amount", "401"),
			},
		},
		"held_orders": {
			map[string]row{"by the charge of this commit": held},
			map[string]row{
				"of another merchant":         held.but("merchant_id", "'globex'"),
				"another order":               held.but("order_id", "'2'"),
				"by a charge that is none":    held.but("stream_id", "'ch_none'"),
				"by an earlier charge":        held.but("stream_id", "'ch_earlier'"),
				"by one that did not want it": held.but("stream_id", "'ch_acme'"),
			},
		},
		"outbox": {
			map[string]row{
				"about a request":          wake,
				"an event of the provider": provided,
				"one of four kilobytes":    provided.but("payload", "convert_to(repeat('x', 4096), 'UTF8')"),
			},
			map[string]row{
				"on the topic of webhooks":   wake.but("topic", "'notification'"),
				"on a topic without readers": wake.but("topic", "'more'"),
				"about no event":             wake.but("message_id", "'11111111-1111-8111-8111-111111111111'"),
				"with an id that is none":    wake.but("message_id", "'1'"),
				"with its id in capitals":    wake.but("message_id", capitals.Replace(wake["message_id"]), "payload", capitals.Replace(wake["payload"])),
				"about another's event":      wake.but("message_id", eventID("globex", 4)),
				"about an outcome": wake.but("message_id", eventID("acme", 3), "payload", sealed("acme", 3, "charge.succeeded.v1"),
					"metadata", `'{"type":"charge.succeeded.v1","ordering_key":"ch_acme","partition_key":"acme"}'`),
				"of another type":            wake.but("metadata", `'{"type":"charge.requested.v1","ordering_key":"ch_acme","partition_key":"acme"}'`),
				"for another charge":         wake.but("metadata", `'{"type":"refund.requested.v1","ordering_key":"ch_globex","partition_key":"acme"}'`),
				"in another's partition":     wake.but("metadata", `'{"type":"refund.requested.v1","ordering_key":"re_1","partition_key":"globex"}'`),
				"in the order of its charge": wake.but("metadata", `'{"type":"refund.requested.v1","ordering_key":"ch_acme","partition_key":"acme"}'`),
				"without metadata":           wake.but("metadata", `'{}'`),
				"with another payload":       wake.but("payload", "''"),
				"with another's payload":     wake.but("payload", sealed("globex", 4, "refund.requested.v1")),
				"of a version to come":       wake.but("payload", sealed("acme", 9, "refund.requested.v1")),
				"of many megabytes":          wake.but("metadata", compressed),

				"of the provider, for the merchant's webhooks":   provided.but("topic", "'notification'"),
				"of the provider, to send a webhook again":       provided.but("topic", "'resend'", "metadata", providers("webhook.resend", "ch_acme", "acme")),
				"of the provider, on a topic without readers":    provided.but("topic", "'more'"),
				"of the provider, that the worker does not take": provided.but("metadata", providers("stripe.charge.refunded.more", "ch_acme", "acme")),
				"of another sender":                              provided.but("metadata", providers("webhook.resend", "ch_acme", "acme")),
				"of the provider, in the name of the ledger":     provided.but("metadata", providers("refund.requested.v1", "ch_acme", "acme")),
				"of the provider, under the id of an event":      provided.but("message_id", eventID("acme", 4)),
				"of the provider, under an event's id to come":   provided.but("message_id", "'11111111-1111-8111-8111-111111111111'"),
				"of the provider, under no id":                   provided.but("message_id", "''"),
				"of the provider, under a long id":               provided.but("message_id", "repeat('x', 256)"),
				"of the provider, about another's charge":        provided.but("metadata", providers("stripe.refund.updated", "ch_globex", "acme")),
				"of the provider, about no charge":               provided.but("metadata", providers("stripe.refund.updated", "ch_none", "acme")),
				"of the provider, without a charge":              provided.but("metadata", `'{"type":"stripe.refund.updated","partition_key":"acme"}'`),
				"of the provider, in another's partition":        provided.but("metadata", providers("stripe.refund.updated", "ch_acme", "globex")),
				"of the provider, in no partition":               provided.but("metadata", `'{"type":"stripe.refund.updated","ordering_key":"ch_acme"}'`),
				"of the provider, of a long type":                provided.but("metadata", providers("stripe."+strings.Repeat("x", 255), "ch_acme", "acme")),
				"of the provider, of many megabytes":             provided.but("payload", "convert_to(repeat('x', 9999999), 'UTF8')"),
				"of the provider, of more than four kilobytes":   provided.but("payload", "convert_to(repeat('x', 4097), 'UTF8')"),
				"of the provider, with long metadata":            provided.but("metadata", compressed+` || '{"type":"stripe.refund.updated"}'`),
			},
		},
		"idempotency_keys": {
			map[string]row{"an answer": answered},
			map[string]row{
				"for another merchant": answered.but("scope", "'globex'"),
				"that never expires":   answered.but("expires_at", "'infinity'"),
				"that never was":       answered.but("expires_at", "'-infinity'"),
				"of many megabytes":    answered.but("body", "convert_to(repeat('x', 9999999), 'UTF8')"),
				"to a long request":    answered.but("request", "convert_to(repeat('x', 9999999), 'UTF8')"),
				"with long headers":    answered.but("headers", compressed),
				"at a long place":      answered.but("headers", "jsonb_build_object('Location', jsonb_build_array(repeat('x', 9999)))"),
				"to a long operation":  answered.but("operation", "repeat('x', 999)"),
				"under a long key":     answered.but("key", "repeat('x', 999)"),
			},
		},
	}
}
