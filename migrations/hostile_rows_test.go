package migrations_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
)

// row is a row to insert: an expression for each column.
type row map[string]string

// but returns the row with other expressions: a column and its expression, and so on.
func (r row) but(changes ...string) row {
	changed := row{}
	maps.Copy(changed, r)
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

// cases are, for a table that the api may insert into, what a request causes and what an attacker would
// add instead.
type cases struct{ caused, forged map[string]row }

// compressThem makes many megabytes that take little room in a table.
const compressThem = `create temporary table large as select ` + megabytes + ` as packed`

const megabytes = `jsonb_build_object('type', 'refund.requested.v1', 'ordering_key', 'ch_acme', 'partition_key', 'acme', 'actor', 'api', 'x', repeat('x', 9999999))`

// values are those of testdata/hostile.txt that begin with $. longest and cause are the longest texts that
// a program writes with a refund: 255 characters that JSON escapes, and ids.
func values(text string) string {
	text = regexp.MustCompile(`\$envelope\((\w+) (\d) ([\w.]+)\)`).ReplaceAllString(text,
		`convert_to(format('{"id":"%s","type":"$3","charge_id":"ch_$1","version":$2}', $$event($1 $2)), 'UTF8')`)
	text = regexp.MustCompile(`\$event\((\w+) (\d)\)`).ReplaceAllString(text, "overlay(md5('$1$2')::uuid::text placing '8' from 15)")
	return strings.NewReplacer(
		"$charge", encoded(charge()), "$returning", encoded(returning()), "$megabytes", megabytes, "$compressed", `(select packed from large)`,
		"$longest", `jsonb_build_object('refund_id', 're_' || repeat('x', 61), 'amount', 1, 'notify', true, 'reason', repeat(e'\x01', 255))`,
		"$cause", `jsonb_build_object('actor', 'api', 'correlation_id', repeat('x', 128), 'causation_id', repeat('x', 128), 'api_key', repeat('x', 64), 'client', repeat('x', 64))`,
	).Replace(text)
}

// inserts reads testdata/hostile.txt: the cases of each table, and the rows that these follow.
func inserts(t *testing.T) (of map[string]cases, rows map[string]row) {
	t.Helper()
	of, rows = map[string]cases{}, map[string]row{}
	into := rows
	for line := range strings.Lines(read(t, "hostile.txt")) {
		line = strings.TrimSpace(line)
		if title, is := strings.CutPrefix(line, "# "); is || line == "" {
			switch table, kind, _ := strings.Cut(title, " "); kind {
			case "caused":
				into = map[string]row{}
				of[table] = cases{into, map[string]row{}}
			case "forged":
				into = of[table].forged
			}
			continue
		}
		parts := strings.Split(line, " | ")
		r := rows[parts[1]].but()
		for _, column := range parts[2:] {
			name, value, _ := strings.Cut(column, ": ")
			r[name] = strings.ReplaceAll(values(value), "$requested", rows["requested"]["data"]+"::jsonb")
		}
		into[parts[0]] = r
	}
	events := of["ledger_events"].forged
	maps.Copy(events, mistyped("a charge", rows["requested"], charge()))
	maps.Copy(events, mistyped("a refund", rows["refund"], returning()))
	for _, kind := range domain.EventTypes() {
		if !kind.Request {
			events["a "+kind.Name] = rows["canceled"].but("type", "'"+kind.Name+"'")
			events["a first "+kind.Name] = rows["requested"].but("type", "'"+kind.Name+"'")
		}
	}
	return of, rows
}

// charge and returning are requests that the program writes with every member.
func charge() domain.ChargeRequested {
	owner := sha256.Sum256([]byte("acme"))
	return domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: "acme", OrderID: "1", Money: domain.Money{Amount: 500, Currency: "USD"}, Fee: 500, PaymentMethod: "pm_card_visa", Customer: "cus_ada",
		Items:       []domain.Item{{SKU: "mug", Quantity: 2}, {SKU: "tshirt", Quantity: 1000000}},
		Description: "a mug", Metadata: map[string]string{"basket": "7"},
		ReturnURL: "https://shop.example", ExpiresAt: time.Date(2999, 11, 26, 16, 40, 0, 5e8, time.FixedZone("", 3600)),
		Notify: true, OneChargePerOrder: true, Reference: "ref_" + hex.EncodeToString(owner[:])[:16] + "0",
	}, Steps: []string{"inventory", "payment"}, Skipped: []string{"inventory"}}
}

func returning() domain.RefundRequested {
	return domain.RefundRequested{RefundID: "re_2", Amount: 600, Reason: "broken", Notify: true}
}

// encoded is the data of an event, which must have all of its members.
func encoded(e domain.Event) string {
	v := reflect.ValueOf(e)
	for _, field := range reflect.VisibleFields(v.Type()) {
		if v.FieldByIndex(field.Index).IsZero() {
			panic("say what a request writes as " + field.Name)
		}
	}
	data, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return "'" + string(data) + "'::jsonb"
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
				rows[name+" whose "+member+" is "+value] = r.but("data", fmt.Sprintf(`%s || '{"%s":%s}'`, encoded(e), member, value))
			}
		}
	}
	return rows
}
