package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// records are tables with columns of the types that the programs insert, whose
// statements are counted. A note is about a record.
func records(t *testing.T) *postgres.DB {
	t.Helper()
	db, _ := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1})
	_, err := db.Pool().Exec(t.Context(), countStatements+`
create table records (
  place   bigint      generated always as identity,
  id      uuid        not null constraint records_once primary key,
  name    text        not null check (name <> 'refused'),
  version int         not null,
  leg     smallint,
  amount  bigint,
  data    jsonb       check (jsonb_typeof(data) = 'object'),
  body    bytea,
  scopes  text[],
  at      timestamptz not null
);
create table notes (
  place  bigint generated always as identity,
  record uuid   not null constraint notes_record references records,
  text   text   not null default 'none'
);
create trigger counted after insert on records for each statement execute function count_statement();
create trigger counted after insert on notes for each statement execute function count_statement();`)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

const insertRecord = `
insert into records
       (id, name, version, leg, amount, data, body, scopes, at)
values ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, clock_timestamp()))`

const insertNote = `
insert into notes
       (record, text)
values ($1, $2)`

// recordID is the same for the same number.
func recordID(n int) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte{byte(n)}) }

// noted are two records and a note about each, numbered from n.
func noted(n int) *pgx.Batch {
	b := &pgx.Batch{}
	for i := n; i < n+2; i++ {
		b.Queue(insertRecord, recordID(i), fmt.Sprint("record ", i), i, nil, nil, nil, nil, nil, nil)
		b.Queue(insertNote, recordID(i), fmt.Sprint("note ", i))
	}
	return b
}

func texts(t *testing.T, db *postgres.DB, sql string) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func want(t *testing.T, db *postgres.DB, sql string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, texts(t, db, sql)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", sql, diff)
	}
}

// countStatements is what a trigger of a table, for each statement, needs to note it.
const countStatements = `
create table statements (inserted text);
create function count_statement() returns trigger language plpgsql as $$
begin
  insert into statements values (tg_table_name);
  return null;
end
$$;`

const statementsOf = `select inserted || ' ' || count(*) from statements group by inserted order by 1`

// TestRowsOfSeveralUnits: a statement inserts the rows of many, and they are as if
// each had inserted its own.
func TestRowsOfSeveralUnits(t *testing.T) {
	t.Parallel()

	t.Run("go by few statements", func(t *testing.T) {
		t.Parallel()
		db := records(t)
		var batches []*pgx.Batch
		for i := range 30 {
			b := &pgx.Batch{}
			b.Queue(insertRecord, recordID(i), "r", i, nil, nil, nil, nil, nil, nil)
			batches = append(batches, b)
		}
		wantNoErrors(t, gathered(t, db, committing(db, batches...)...))
		want(t, db, statementsOf, "records 4") // of 16, 8, 4 and 2
		want(t, db, `select string_agg(version::text, ' ' order by place) from records`,
			"0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29")
	})

	t.Run("keep the order of their unit", func(t *testing.T) {
		t.Parallel()
		db := records(t)
		var batches []*pgx.Batch
		for i := range 8 {
			batches = append(batches, noted(2*i))
		}
		wantNoErrors(t, gathered(t, db, committing(db, batches...)...))
		want(t, db, statementsOf, "notes 1", "records 1")
		want(t, db, `select count(*)::text from notes`, "16")
		want(t, db, `
select count(*)::text
  from records a
  join records b
    on b.version = a.version + 1
   and b.place < a.place
 where a.version % 2 = 0`, "0")
	})

	t.Run("have their own values, of whatever type", func(t *testing.T) {
		t.Parallel()
		db := records(t)
		at := time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.UTC)
		var all [][]any
		for i := range 7 {
			all = append(all,
				[]any{fmt.Sprint("a'$1 ", i), i, int16(i), int64(i) << 40, []byte(`{"a":"$2"}`), []byte{0, byte(i)}, []string{"x", strconv.Itoa(i)}, &at},
				[]any{fmt.Sprint("\\ ", i), -1, nil, nil, nil, nil, nil, (*time.Time)(nil)},
				[]any{"", i, nil, int64(0), `{}`, []byte{}, []string{}, at.Add(time.Duration(i) * time.Hour)},
			)
		}
		var batches []*pgx.Batch
		for i, values := range all {
			b := &pgx.Batch{}
			b.Queue(insertRecord, append([]any{recordID(i)}, values...)...)
			batches = append(batches, b)
		}
		wantNoErrors(t, gathered(t, db, committing(db, batches...)...))
		want(t, db, statementsOf, "records 3")
		const read = `
select concat_ws('|', id, quote_literal(name), version, quote_nullable(leg), quote_nullable(amount), quote_nullable(data),
                 quote_nullable(body), quote_nullable(scopes), case when version >= 0 then at end)
  from records
 order by place`
		joined := texts(t, db, read)
		if _, err := db.Pool().Exec(t.Context(), `delete from records`); err != nil {
			t.Fatal(err)
		}
		for i, values := range all {
			if _, err := db.Pool().Exec(t.Context(), insertRecord, append([]any{recordID(i)}, values...)...); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(texts(t, db, read), joined); diff != "" {
			t.Errorf("rows (-each for itself +joined):\n%s", diff)
		}
	})

	t.Run("are a tenant's own", func(t *testing.T) {
		t.Parallel()
		owner, api := diaries(t, postgres.Options{})
		var units []func(context.Context) error
		var written []diary
		for i := range 12 {
			merchant := []string{"acme", "globex", "initech"}[i%3]
			units = append(units, committing(api.Tenant(merchant), note(merchant, i))...)
			written = append(written, diary{i, merchant, "200ms", false})
		}
		wantNoErrors(t, gathered(t, api, units...))
		if diff := cmp.Diff(written, readDiaries(t, owner)); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
		if got := api.Shared(); got.Commits != 1 || got.Refusals != 0 {
			t.Errorf("shared are %+v", got)
		}
	})
}

// TestARefusedRowAmongOthers: whichever row it is, and whoever's, the refusal is its
// unit's alone, which is as it was: the others go on together.
func TestARefusedRowAmongOthers(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	for name, poison := range map[string]struct {
		args       func(record int) (sql string, args []any)
		constraint string
	}{
		"a row that is there": {func(int) (string, []any) {
			return insertRecord, []any{recordID(99), "r", 1, nil, nil, nil, nil, nil, nil}
		}, "records_once"},
		"a value that is not allowed": {func(n int) (string, []any) {
			return insertRecord, []any{recordID(n), "refused", 1, nil, nil, nil, nil, nil, nil}
		}, "records_name_check"},
		"a null": {func(n int) (string, []any) {
			return insertRecord, []any{recordID(n), nil, 1, nil, nil, nil, nil, nil, nil}
		}, ""},
		"what is about nothing": {func(n int) (string, []any) {
			return insertNote, []any{recordID(n), "about nothing"}
		}, "notes_record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := records(t)
			for position := range 5 {
				if _, err := db.Pool().Exec(t.Context(), `delete from notes; delete from records`); err != nil {
					t.Fatal(err)
				}
				if err := db.Commit(t.Context(), noted(99)); err != nil {
					t.Fatal(err)
				}
				before := db.Shared()
				var batches []*pgx.Batch
				for i := range 5 {
					batches = append(batches, noted(2*i))
				}
				sql, args := poison.args(50)
				batches[position].Queue(sql, args...)
				alone := &pgx.Batch{}
				alone.Queue(sql, args...)
				lone := db.Commit(t.Context(), alone)

				answers := gathered(t, db, committing(db, batches...)...)
				err := answers[position]
				if code(err) == "" || code(err) != code(lone) || postgres.Constraint(err) != poison.constraint {
					t.Errorf("at position %d it was told %v, and alone %v", position+1, err, lone)
				}
				wantNoErrors(t, slices.Delete(answers, position, position+1))
				if got := db.Shared(); got.Commits-before.Commits != 1 || got.Units-before.Units != 4 || got.Refusals-before.Refusals != 1 {
					t.Errorf("at position %d shared are %+v, before %+v", position+1, got, before)
				}
				want(t, db, `select count(*) || ' ' || count(distinct xmin::text) from records where version < 99`, "8 1")
				want(t, db, `select count(*)::text from notes n join records r on r.id = n.record where r.version < 99`, "8")
			}
		})
	}
}
