package migrations_test

import (
	"context"
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

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// hostile is a session of an attacker who has the api's password, on a migrated database.
type hostile struct {
	*pgx.Conn
	owner *postgres.DB
	login string
}

func newHostile(t *testing.T) hostile {
	t.Helper()
	testrun.Long(t, "it tries what an attacker would")
	address := testdb.URL(t)
	owner := testdb.Connect(t, address)
	h := hostile{owner: owner, login: testdb.All[string](t, owner, `select current_database()::text`)[0] + "_api"}
	testdb.Exec(t, owner.Pool(), `create role `+h.login+` login in role payonce_api`)
	h.Conn = testdb.Session(t, user(t, address, h.login))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := h.Exec(ctx, `discard temp`) // the server does so itself, at some time after Close
		_ = h.Close(ctx)
		if err != nil {
			t.Error(err)
		}
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

// TestHostileAPI_mayDoWhatItWasGranted tries what the catalogue lists: each table, column, function, sequence and setting.
// What succeeds is what the catalogue gives to payonce_api, which TestRights_areAsDecided compares with what was decided.
// To leave the role changes nothing.
func TestHostileAPI_mayDoWhatItWasGranted(t *testing.T) {
	testrun.Long(t, "it tries each grant")
	t.Parallel()
	h := newHostile(t)
	all := testdb.All[attempt](t, h.owner, attempts)
	if len(all) < 500 {
		t.Errorf("the catalogue lists only %d", len(all))
	}
	for _, known := range []attempt{
		{`explain insert into ledger_events (webhook) values (default)`, true},
		{`select charge_by_payment_intent(null::text, null::text)`, true},
		{`truncate inbox`, false},
		{`select nextval('inbox_id_seq')`, false},
		{`set local max_connections to default`, false},
	} {
		if !slices.Contains(all, known) {
			t.Errorf("the catalogue does not list %v", known)
		}
	}
	for _, sql := range []string{
		`set role payonce_worker`, `set session authorization postgres`, `set local role postgres`,
		`select set_config('role', 'payonce_worker', false)`,
		`alter database ` + strings.TrimSuffix(h.login, "_api") + ` set row_security = off`, `create role more`,
		`grant payonce_worker to ` + h.login, `alter role ` + h.login + ` bypassrls`, `alter role ` + h.login + ` connection limit -1`,
	} {
		all = append(all, attempt{SQL: sql})
	}
	for _, role := range []string{"payonce_api", "none"} {
		testdb.Exec(t, h, `select set_config('role', $1, false)`, role)
		for _, a := range all {
			code := h.try(t, a.SQL)
			// Whatever the rights are, some is never done to a view, or to a setting while a server runs.
			if done := code == ""; done != a.Given || !done && !strings.Contains(refused+" 42809 55000 0A000 55P02", code) {
				t.Errorf("as %s: %s: %q, given: %t", role, a.SQL, code, a.Given)
			}
		}
	}
	more := testdb.All[string](t, h.owner, `
select oid::regprocedure::text
  from pg_proc
 where pronamespace = 'pg_catalog'::regnamespace
   and has_function_privilege('`+h.login+`', oid, 'execute')
   and not has_function_privilege('public', oid, 'execute')`)
	testrun.Same(t, "functions of the system beyond those of everybody", []string{}, more)
}

// attempt is a statement, and whether the catalogue gives its right to payonce_api, in the schema of the service.
type attempt struct {
	SQL   string
	Given bool
}

// attempts are the verbs of each column, where EXPLAIN checks the rights and does nothing; the functions; and what no
// role is given: statements on tables as a whole, on sequences, and on settings that are not the session's own.
const attempts = `
with ours as (
  select oid as space
    from pg_namespace
   where nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
), found as (
  select format(sql, c.oid::regclass, a.attname) as sql,
         space = 'public'::regnamespace and has_column_privilege('payonce_api', c.oid, a.attnum, verb) as given
    from ours
    join pg_class c on c.relnamespace = space and c.relkind in ('r', 'p', 'v', 'm', 'f')
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
   cross join (values ('select', 'explain select %2$I from %1$s'),
                      ('insert', 'explain insert into %1$s (%2$I) values (default)'),
                      ('update', 'explain update %1$s set %2$I = default where false')) as v (verb, sql)
   union all
  select format('select %s(%s)', proname, (select string_agg(format('null::%s', format_type(a, null)), ', ') from unnest(proargtypes) a)),
         space = 'public'::regnamespace and has_function_privilege('payonce_api', oid, 'execute')
    from ours
    join pg_proc on pronamespace = space
   union all
  select format(sql, oid::regclass), false
    from ours
    join pg_class on relnamespace = space,
         unnest(case when relkind = 'S' then array['select nextval(''%s'')', 'select setval(''%s'', 1)', 'select last_value from %s']
                     when relkind in ('r', 'p', 'v', 'm', 'f')
                     then array['explain delete from %s', 'truncate %s', 'lock table %s in share mode',
                                'explain merge into %s using (values (1)) v on true when matched then delete'] end) as sql
   union all
  select 'set local ' || name || ' to default', false from pg_settings where context <> 'user'
)
select jsonb_build_object('SQL', sql, 'Given', given) from found`

// TestHostileAPI_insertsWhatARequestCauses tries rows as the api, for acme: those of a request
// are accepted, and whatever else an attacker would add is refused.
func TestHostileAPI_insertsWhatARequestCauses(t *testing.T) {
	testrun.Long(t, "it inserts many rows")
	t.Parallel()
	h := newHostile(t)
	testdb.Exec(t, h.owner.Pool(), read(t, "hostile.sql"), pgx.QueryExecModeSimpleProtocol)
	testdb.Exec(t, h, compressThem)
	all, rows := inserts(t)
	before := map[string]string{"held_orders": rows["alone"].insert("ledger_events")} // what a request inserts before
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
	for table, cases := range all { // in sessions that have named no merchant yet
		for name, r := range cases.caused {
			if code := h.try(t, before[table], r.insert(table)); code != refused {
				t.Errorf("%s %s, without a merchant: %q, want %s", table, name, code, refused)
			}
		}
	}
	for table, cases := range all {
		for name, r := range cases.caused {
			if code := h.try(t, `set local payonce.merchant = 'acme'`, before[table], r.insert(table)); code != "" {
				t.Errorf("%s %s: %s", table, name, code)
			}
			for _, merchant := range []string{"globex", "", "ACME"} {
				if code := h.try(t, `set local payonce.merchant = '`+merchant+`'`, before[table], r.insert(table)); code != refused {
					t.Errorf("%s %s, as %q: %q, want %s", table, name, merchant, code, refused)
				}
			}
		}
		for name, r := range cases.forged {
			// A constraint of the table may refuse what no policy looks at, and a cast (22…) what is
			// of another type.
			if code := h.try(t, `set local payonce.merchant = 'acme'`, before[table], r.insert(table)); code != refused &&
				code != "23514" && !strings.HasPrefix(code, "22") {
				t.Errorf("%s %s: %q, want %s", table, name, code, refused)
			}
		}
	}
}

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
			"null": nil, `"x"`: "", "1": 1.0, "true": true, "{}": map[string]any{},
			"[]": []any{}, `["https://x"]`: []any{}, "[1]": []any{}, "[true]": []any{}, // which JSON paths take for what is in it
		} {
			if member == "x" || reflect.TypeOf(is) != reflect.TypeOf(other) {
				rows[name+" whose "+member+" is "+value] = r.but("data", fmt.Sprintf(`%s || '{"%s":%s}'`, encoded(e), member, value))
			}
		}
	}
	return rows
}
