package migrations_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// hostile is a session of an attacker who has the api's password, on a migrated database.
type hostile struct {
	*pgx.Conn
	owner *postgres.DB
	login string
}

func newHostile(t *testing.T) hostile {
	t.Helper()
	address := testdb.URL(t)
	owner := testdb.Connect(t, address)
	h := hostile{owner: owner, login: testdb.All[string](t, owner, `select current_database()::text`)[0] + "_api"}
	testdb.Exec(t, owner.Pool(), `create role `+h.login+` login in role payonce_api`)
	h.Conn = connect(t, user(t, address, h.login))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = h.Close(ctx)
		if _, err := owner.Pool().Exec(ctx, `drop role `+h.login); err != nil {
			t.Error(err)
		}
	})
	return h
}

// try runs statements in a transaction that is rolled back, and returns the code of the
// error, "" where there is none.
func (h hostile) try(t *testing.T, statements ...string) (code string) {
	t.Helper()
	all := "begin; " + strings.Join(statements, "; ") + "; rollback"
	_, err := h.Exec(t.Context(), all, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		_, rolledBack := h.Exec(t.Context(), "rollback")
		testdb.Must(t, rolledBack)
	}
	return testdb.Code(err)
}

// TestHostileAPI_mayDoWhatIsDecided tries what the catalogue lists: each table, column,
// function, sequence and setting. What succeeds is what testdata/rights.txt gives to the
// api. To leave the role changes nothing.
func TestHostileAPI_mayDoWhatIsDecided(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	decided := decidedFor(t, h.owner)
	for _, role := range []string{"payonce_api", "none"} {
		testdb.Must(t, func() error { _, err := h.Exec(t.Context(), `select set_config('role', $1, false)`, role); return err }())
		found := slices.Concat(h.tables(t), h.functions(t))
		slices.Sort(found)
		if diff := cmp.Diff(decided, found); diff != "" {
			t.Errorf("as %s (-decided +succeeds):\n%s", role, diff)
		}
		h.sequences(t)
		h.settings(t)
		for _, sql := range []string{
			`set role payonce_worker`, `set session authorization postgres`, `set local role postgres`,
			`select set_config('role', 'payonce_worker', false)`,
			`alter database ` + strings.TrimSuffix(h.login, "_api") + ` set row_security = off`, `create role more`,
			`grant payonce_worker to ` + h.login, `alter role ` + h.login + ` bypassrls`, `alter role ` + h.login + ` connection limit -1`,
		} {
			if code := h.try(t, sql); code != refused {
				t.Errorf("as %s: %s: %q, want %s", role, sql, code, refused)
			}
		}
	}
}

// decidedFor expands what testdata/rights.txt gives to the api: a line for each column or
// verb of a table, and for each function.
func decidedFor(t *testing.T, db *postgres.DB) (decided []string) {
	t.Helper()
	columns := map[string][]string{}
	for _, c := range testdb.All[string](t, db, selectAllColumns) {
		table, column, _ := strings.Cut(c, ".")
		columns[table] = append(columns[table], column)
	}
	for line := range strings.Lines(read(t, "rights.txt")) {
		name, rights, given := strings.Cut(strings.TrimSpace(line), ": payonce_api: ")
		if function, by, executed := strings.Cut(strings.TrimSpace(line), "(): executed by "); executed && strings.Contains(by, "payonce_api") {
			decided = append(decided, function+"()")
		}
		if !given || rights == "nothing" {
			continue
		}
		for right := range strings.SplitSeq(rights, "; ") {
			verb, list, some := strings.Cut(strings.TrimSuffix(right, ")"), " (")
			for _, column := range columns[name] {
				if !some || slices.Contains(strings.Split(list, ", "), column) {
					decided = append(decided, verb+" "+name+"."+column)
				}
			}
		}
	}
	slices.Sort(decided)
	return decided
}

const selectAllColumns = `
select c.relname || '.' || a.attname
  from pg_class c
  join pg_attribute a
    on a.attrelid = c.oid
   and a.attnum > 0
   and not a.attisdropped
 where c.relnamespace::regnamespace::text not in ('pg_catalog', 'information_schema', 'pg_toast')
   and c.relkind in ('r', 'p', 'v', 'm', 'f')
 order by 1`

// tables returns the verbs and columns that succeed. EXPLAIN checks the rights and does
// nothing.
func (h hostile) tables(t *testing.T) (done []string) {
	t.Helper()
	whole := map[string]bool{}
	for _, name := range testdb.All[string](t, h.owner, selectAllColumns) {
		table, column, _ := strings.Cut(name, ".")
		for verb, sql := range map[string]string{
			"select": `explain select "` + column + `" from ` + table,
			"insert": `explain insert into ` + table + ` ("` + column + `") values (default)`,
			"update": `explain update ` + table + ` set "` + column + `" = default where false`,
		} {
			switch code := h.try(t, sql); code {
			case "":
				done = append(done, verb+" "+name)
			case refused, "55000", "0A000": // a view takes no rows
			default:
				t.Errorf("%s: %s", sql, code)
			}
		}
		for _, sql := range []string{
			`explain delete from ` + table, `truncate ` + table, `lock table ` + table + ` in share mode`,
			`explain merge into ` + table + ` using (values (1)) v on true when matched then delete`,
		} {
			if code := h.try(t, sql); !whole[sql] && code != refused && code != "42809" && code != "55000" && code != "0A000" {
				t.Errorf("%s: %q, want %s", sql, code, refused)
			}
			whole[sql] = true
		}
	}
	return done
}

// functions returns the functions outside the system's schemas that succeed, or fail later
// than at the right to call them. Of the system's, the api may call what every role may.
func (h hostile) functions(t *testing.T) (done []string) {
	t.Helper()
	for _, call := range testdb.All[string](t, h.owner, `
select format('select %s(%s)', proname, (select string_agg(format('null::%s', format_type(a, null)), ', ') from unnest(proargtypes) a))
  from pg_proc
 where pronamespace::regnamespace::text not in ('pg_catalog', 'information_schema')`) {
		if h.try(t, call) != refused {
			name, _, _ := strings.Cut(strings.TrimPrefix(call, "select "), "(")
			done = append(done, name+"()")
		}
	}
	if more := testdb.All[string](t, h.owner, `
select oid::regprocedure::text
  from pg_proc
 where pronamespace::regnamespace::text = 'pg_catalog'
   and has_function_privilege('`+h.login+`', oid, 'execute')
   and not has_function_privilege('public', oid, 'execute')`); len(more) > 0 {
		t.Errorf("functions of the system beyond those of everybody: %v", more)
	}
	return done
}

func (h hostile) sequences(t *testing.T) {
	t.Helper()
	for _, name := range testdb.All[string](t, h.owner, `select relname::text from pg_class where relkind = 'S'`) {
		for _, sql := range []string{`select nextval('` + name + `')`, `select setval('` + name + `', 1)`, `select last_value from ` + name} {
			if code := h.try(t, sql); code != refused {
				t.Errorf("%s: %q, want %s", sql, code, refused)
			}
		}
	}
}

// settings tries each setting of the server that is not the session's own.
func (h hostile) settings(t *testing.T) {
	t.Helper()
	for _, name := range testdb.All[string](t, h.owner, `select name from pg_settings where context <> 'user'`) {
		if code := h.try(t, `set local `+name+` to default`); code != refused && code != "55P02" {
			t.Errorf("set %s: %q, want %s", name, code, refused)
		}
	}
}

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
// each of two merchants, with a refund that is requested, and messages in each state.
const history = `
insert into merchants (merchant_id) values ('acme'), ('globex');
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select overlay(md5(m || v)::uuid::text placing '8' from 15)::uuid, 'ch_' || m, v, type, 1, m, data::jsonb || jsonb_build_object('merchant_id', m), '{}', now()
  from unnest(array['acme', 'globex']) m
 cross join (values (1, 'charge.requested.v1', '{"amount":1000,"currency":"USD"}'),
                    (2, 'charge.succeeded.v1', '{}'),
                    (3, 'refund.requested.v1', '{"refund_id":"re_1","amount":400}'),
                    (4, 'charge.cancel_requested.v1', '{}')) e(v, type, data);
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, due_at, waits, attempts, holder, fence, done_fence)
select 'fulfillment', 'evt_' || s || '_' || m, 'ch_' || m, 'stripe.refund.updated', '', '{}', '', case s when 'waiting' then 'pending' else s end,
       now() + interval '1 hour', case s when 'waiting' then 1 else 0 end, 0, null, 1, case s when 'done' then 1 end
  from unnest(array['acme', 'globex']) m
 cross join unnest(array['pending', 'waiting', 'done', 'dead']) s
`

// The rows that requests and the provider's webhook insert, for acme.
var (
	requested = row{
		"event_id": "'11111111-1111-8111-8111-111111111111'", "stream_id": "'ch_new'", "version": "1", "type": "'charge.requested.v1'",
		"schema_version": "1", "merchant_id": "'acme'", "data": `'{"merchant_id":"acme","order_id":"1","amount":500,"currency":"USD"}'`,
		"metadata": `'{"actor":"api"}'`, "occurred_at": "now()",
	}
	canceled = requested.but("stream_id", "'ch_acme'", "version", "5", "type", "'charge.cancel_requested.v1'", "data", "'{}'")
	refund   = canceled.but("type", "'refund.requested.v1'", "data", `'{"refund_id":"re_2","amount":1}'`)
	owed     = row{
		"stream_id": "'ch_acme'", "version": "1", "leg": "1", "merchant_id": "'acme'", "debit": "'customer_receivable:acme:USD'",
		"credit": "'merchant_pending:acme:USD'", "amount": "1000", "currency": "'USD'",
	}
	returned = owed.but("version", "3", "debit", "'merchant_payable:acme:USD'", "credit", "'refund_clearing:acme:USD'", "amount", "400")
	wake     = row{
		"topic": "'charges'", "message_id": eventID("acme", 3), "payload": sealed("acme", 3, "refund.requested.v1"),
		"metadata": `'{"type":"refund.requested.v1","ordering_key":"ch_acme","partition_key":"acme"}'`,
	}
	answered = row{
		"scope": "'acme'", "operation": "'POST /v1/charges'", "key": "'k1'", "fingerprint": "''", "status_code": "202",
		"content_type": "'application/json'", "location": "''", "body": "'{}'", "expires_at": "now()",
	}
	provided = row{
		"receiver": "'fulfillment'", "message_id": "'evt_1'", "ordering_key": "'ch_acme'", "partition_key": "'acme'", "type": "'stripe.refund.updated'",
		"payload": "''", "metadata": "'{}'", "payload_hash": "''", "status": "'pending'", "due_at": "clock_timestamp()", "attempts": "0", "fence": "0",
		"holder": "null", "last_error": "null",
	}
	unlike = row{"receiver": "'fulfillment'", "message_id": "'evt_pending_acme'", "payload": "''", "metadata": "'{}'", "payload_hash": "'1'"}
)

func eventID(merchant string, version int) string {
	return fmt.Sprintf("overlay(md5('%s%d')::uuid::text placing '8' from 15)", merchant, version)
}

func sealed(merchant string, version int, kind string) string {
	return fmt.Sprintf(`convert_to(format('{"id":"%%s","type":"%s","charge_id":"ch_%s","version":%d}', %s), 'UTF8')`, kind, merchant, version, eventID(merchant, version))
}

// inserts are, for each table that the api may insert into, what a request causes and what
// an attacker would add instead.
func inserts() map[string]struct{ caused, forged map[string]row } {
	type cases = struct{ caused, forged map[string]row }
	events := cases{
		map[string]row{"a charge": requested, "a cancellation": canceled, "a refund": refund},
		map[string]row{
			"of an unknown type":                     canceled.but("type", "'charge.exploded.v1'"),
			"of a newer version":                     canceled.but("type", "'charge.cancel_requested.v2'"),
			"of a newer schema":                      canceled.but("schema_version", "2"),
			"a charge in the middle":                 requested.but("stream_id", "'ch_acme'", "version", "5"),
			"a refund of nothing":                    refund.but("stream_id", "'ch_new'", "version", "1"),
			"for another merchant":                   requested.but("merchant_id", "'globex'"),
			"a charge whose data is another's":       requested.but("data", `'{"merchant_id":"globex","order_id":"1","amount":500,"currency":"USD"}'`),
			"a charge whose data names no merchant":  requested.but("data", `'{}'`),
			"a charge of no number":                  requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":"much","currency":"USD"}'`),
			"a charge of too large a number":         requested.but("data", `'{"merchant_id":"acme","order_id":"1","amount":1e30,"currency":"USD"}'`),
			"a refund of no number":                  refund.but("data", `'{"refund_id":"re_2","amount":null}'`),
			"an order that fits in no index":         requested.but("data", `jsonb_build_object('merchant_id', 'acme', 'amount', 500, 'order_id', repeat('x', 9999))`),
			"of many megabytes":                      canceled.but("data", `jsonb_build_object('x', repeat('x', 9999999))`),
			"of a stream with a long name":           requested.but("stream_id", "repeat('x', 99)"),
			"in the name of the worker":              canceled.but("metadata", `'{"actor":"worker"}'`),
			"a cancellation without an actor":        canceled.but("metadata", `'{}'`),
			"under the id of an event of the worker": canceled.but("event_id", "'11111111-1111-5111-8111-111111111111'"),
			"that never happened":                    canceled.but("occurred_at", "'infinity'"),
			"of long ago":                            canceled.but("occurred_at", "'-infinity'"),
			"of next year":                           canceled.but("occurred_at", "now() + interval '1 year'"),
		},
	}
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
				"of an outcome":             owed.but("version", "2"),
				"of a cancellation":         owed.but("version", "4"),
				"of a version to come":      owed.but("version", "9"),
				"of a charge that is none":  owed.but("stream_id", "'ch_none'"),
				"a refund by its charge":    owed.but("version", "3", "amount", "400"),
				"a charge by its refund":    returned.but("version", "1", "amount", "1000"),
				"a refund of another's sum": returned.but("amount", "401"),
			},
		},
		"outbox": {
			map[string]row{"about a request": wake},
			map[string]row{
				"on the topic of outcomes":   wake.but("topic", "'outcomes'"),
				"on a topic without readers": wake.but("topic", "'more'"),
				"about no event":             wake.but("message_id", "'11111111-1111-8111-8111-111111111111'"),
				"with an id that is none":    wake.but("message_id", "'1'"),
				"about another's event":      wake.but("message_id", eventID("globex", 3)),
				"about an outcome": wake.but("message_id", eventID("acme", 2), "payload", sealed("acme", 2, "charge.succeeded.v1"),
					"metadata", `'{"type":"charge.succeeded.v1","ordering_key":"ch_acme","partition_key":"acme"}'`),
				"of another type":        wake.but("metadata", `'{"type":"charge.requested.v1","ordering_key":"ch_acme","partition_key":"acme"}'`),
				"for another charge":     wake.but("metadata", `'{"type":"refund.requested.v1","ordering_key":"ch_globex","partition_key":"acme"}'`),
				"in another's partition": wake.but("metadata", `'{"type":"refund.requested.v1","ordering_key":"ch_acme","partition_key":"globex"}'`),
				"without metadata":       wake.but("metadata", `'{}'`),
				"with another payload":   wake.but("payload", "''"),
				"of a version to come":   wake.but("payload", sealed("acme", 9, "refund.requested.v1")),
			},
		},
		"idempotency_keys": {
			map[string]row{"an answer": answered},
			map[string]row{
				"for another merchant": answered.but("scope", "'globex'"),
				"that never expires":   answered.but("expires_at", "'infinity'"),
				"that never was":       answered.but("expires_at", "'-infinity'"),
			},
		},
		"inbox": {
			map[string]row{"an event of the provider": provided, "one that was received": provided.but("message_id", "'evt_2'")},
			map[string]row{
				"for the merchant's webhooks": provided.but("receiver", "'notification'"),
				"to send a webhook again":     provided.but("receiver", "'resend'", "type", "'webhook.resend'"),
				"in the name of the ledger":   provided.but("type", "'charge.requested.v1'"),
				"under an event's id":         provided.but("message_id", "'11111111-1111-8111-8111-111111111111'"),
				"that runs":                   provided.but("status", "'running'"),
				"that runs for ever":          provided.but("status", "'running'", "due_at", "'infinity'", "fence", "1", "holder", "'me'"),
				"that is dead":                provided.but("status", "'dead'"),
				"that waits for ever":         provided.but("due_at", "'infinity'"),
				"that waited for ever":        provided.but("due_at", "'-infinity'"),
				"that is held back":           provided.but("due_at", "null"),
				"that was tried":              provided.but("attempts", "11"),
				"that was claimed":            provided.but("fence", "1"),
				"that a worker already holds": provided.but("holder", "'me'"),
				"that failed":                 provided.but("last_error", "'mine'"),
				"about another's charge":      provided.but("ordering_key", "'ch_globex'"),
				"about no charge":             provided.but("ordering_key", "'ch_none'"),
				"in another's partition":      provided.but("partition_key", "'globex'"),
			},
		},
		"inbox_quarantine": {
			map[string]row{"another payload of the provider": unlike},
			map[string]row{
				"of another merchant": unlike.but("message_id", "'evt_pending_globex'"),
				"of no message":       unlike.but("message_id", "'evt_none'"),
			},
		},
	}
}

// TestHostileAPI_insertsWhatARequestCauses tries rows as the api, for acme: those of a request
// are accepted, and whatever else an attacker would add is refused.
func TestHostileAPI_insertsWhatARequestCauses(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	testdb.Exec(t, h.owner.Pool(), history)
	all := inserts()
	for _, table := range testdb.All[string](t, h.owner, `
select relname::text
  from pg_class
 where relnamespace = 'public'::regnamespace
   and relkind = 'r'
   and has_any_column_privilege('payonce_api', oid, 'insert')`) {
		if all[table].caused == nil || all[table].forged == nil {
			t.Errorf("the api inserts into %s: say here what a request causes there, and what it does not", table)
		}
	}
	for table, cases := range all {
		for name, r := range cases.caused {
			if code := h.try(t, `set local payonce.merchant = 'acme'`, r.insert(table)); code != "" {
				t.Errorf("%s %s: %s", table, name, code)
			}
			for _, merchant := range []string{"globex", "", "ACME"} {
				if code := h.try(t, `set local payonce.merchant = '`+merchant+`'`, r.insert(table)); code != refused {
					t.Errorf("%s %s, as %q: %q, want %s", table, name, merchant, code, refused)
				}
			}
		}
		for name, r := range cases.forged {
			if code := h.try(t, `set local payonce.merchant = 'acme'`, r.insert(table)); code != refused {
				t.Errorf("%s %s: %q, want %s", table, name, code, refused)
			}
		}
	}
}

// TestHostileAPI_changesWhatARequestChanges: the one table that the api updates is the inbox.
func TestHostileAPI_changesWhatARequestChanges(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	testdb.Exec(t, h.owner.Pool(), history)
	for _, table := range testdb.All[string](t, h.owner, `
select relname::text
  from pg_class
 where relnamespace = 'public'::regnamespace
   and relkind = 'r'
   and relname <> 'inbox'
   and has_any_column_privilege('payonce_api', oid, 'update')`) {
		t.Errorf("the api updates %s: say here what a request changes there", table)
	}
	const (
		decided = ", decided_by = 'admin', decided_at = clock_timestamp()"
		retry   = "status = 'pending', attempts = 0, deaths = 0, waits = 0, waiting_since = null, due_at = clock_timestamp()" + decided
		discard = "status = 'discarded', fence = fence + 1, finished_at = clock_timestamp()" + decided
	)
	for _, c := range []struct {
		message, set string
		want         string
	}{
		{"dead", retry, ""},
		{"dead", discard, ""},
		{"waiting", "due_at = clock_timestamp()", ""},
		{"done", "duplicates = duplicates + 1", ""},
		{"pending", "duplicates = duplicates + 1", ""},
		{"pending", discard, refused},
		{"waiting", discard, refused},
		{"done", discard, refused},
		{"done", retry, refused},
		{"dead", strings.Replace(retry, "due_at = clock_timestamp()", "due_at = 'infinity'", 1), refused},
		{"dead", strings.Replace(retry, "due_at = clock_timestamp()", "due_at = '-infinity'", 1), refused},
		{"dead", strings.Replace(retry, "due_at = clock_timestamp()", "due_at = null", 1), refused},
		{"dead", strings.Replace(retry, "decided_at = clock_timestamp()", "decided_at = '-infinity'", 1), refused},
		{"dead", strings.Replace(retry, "attempts = 0", "attempts = 11", 1), refused},
		{"dead", strings.Replace(discard, "fence + 1", "fence + 2", 1), refused},
		{"dead", "status = 'running', due_at = 'infinity'", refused},
		{"dead", "status = 'done'", refused},
		{"pending", "status = 'running', due_at = 'infinity'", refused},
		{"pending", "status = 'dead'", refused},
		{"pending", "due_at = 'infinity'", refused},
		{"pending", "due_at = null", refused},
		{"pending", "due_at = clock_timestamp()", refused},
		{"waiting", "due_at = due_at + interval '1 day'", refused},
		{"waiting", "waits = 100", refused},
		{"pending", "attempts = 11", refused},
		{"pending", "deaths = 3", refused},
		{"pending", "fence = fence + 1", refused},
		{"done", "fence = fence + 1", refused},
		{"done", "finished_at = '-infinity'", refused},
		{"done", "duplicates = duplicates + 2", refused},
		{"done", "duplicates = -1", refused},
		{"pending", "decided_by = 'admin', decided_at = now()", refused},
	} {
		sql := `update inbox set ` + c.set + ` where message_id = 'evt_` + c.message + `_acme'`
		// A constraint of the table may be faster than the trigger.
		if code := h.try(t, `set local payonce.merchant = 'acme'`, sql); code != c.want && (c.want == "" || code != "23514") {
			t.Errorf("%s: %q, want %q", sql, code, c.want)
		}
		if code := h.try(t, `set local payonce.merchant = 'globex'`, sql, `do $$ begin if exists (select from inbox where message_id like '%acme') then raise 'seen'; end if; end $$`); code != "" {
			t.Errorf("%s, as globex: %s", sql, code)
		}
	}
}
