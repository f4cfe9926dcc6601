package ledger_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// What a page costs must not grow with the ledger, whatever the planner believes
// of it and whenever it was told: restored tables were never analyzed, and a plan
// of when they were empty is kept. Of the plans see also
// TestPlansWhateverIsKnown in migrations.
func TestAPageCostsWhatItsEventsCost(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes 20,000 charges")
	const grown, charges = 4000, 200
	for name, analyzed := range map[string][3]bool{ // with one charge, halfway, at the end
		"never analyzed":             {},
		"analyzed with a charge":     {true, false, false},
		"analyzed halfway":           {false, true, false},
		"analyzed when all is there": {false, false, true},
		"analyzed all the time":      {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := reader(t, testdb.URL(t), "") // plans are kept by its one session
			unattended(t, db)
			analyze := func(when int) {
				if analyzed[when] {
					exec(t, db, `analyze`)
				}
			}
			first := []*ledger.Stream{newStream("ch_first")}
			folded(t, db, first, opened("acme", 1000, "EUR"))
			analyze(0)
			for range 10 { // the first five are planned each for itself
				folded(t, db, first, attempt(500))
			}
			fill(t, db, 1, grown/2)
			analyze(1)
			fill(t, db, grown/2+1, grown)
			analyze(2)
			streams := make([]*ledger.Stream, charges)
			for i := range streams {
				streams[i] = newStream(fmt.Sprintf("ch_new_%03d", i))
			}
			if n := folded(t, db, streams, opened("acme", 1000, "EUR")); n > 20*charges {
				t.Errorf("folding %d events read %d rows and entries, beside %d older events", charges, n, grown)
			}
		})
	}
}

func newStream(id string) *ledger.Stream {
	s := ledger.New(id)
	return &s
}

// folded commits an event to each of the streams, folds them, and says how many
// rows and index entries that has read.
func folded(t *testing.T, db *postgres.DB, streams []*ledger.Stream, e domain.Event) (read int64) {
	t.Helper()
	b := &pgx.Batch{}
	for _, s := range streams {
		next, err := ledger.Append(b, *s, because(strconv.Itoa(len(s.Events))), e)
		if err != nil {
			t.Fatal(err)
		}
		*s = next
	}
	var committed uint64
	b.Queue(`select pg_current_xact_id()`).QueryRow(func(row pgx.Row) error { return row.Scan(&committed) })
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	// Until nobody on the server has an older transaction there is nothing to fold.
	// What looks at the ledger meanwhile would be counted with the rest.
	await.Row(t, db, `select $1::text::xid8 < pg_snapshot_xmin(pg_current_snapshot())`, strconv.FormatUint(committed, 10))
	before := touched(t, db)
	if n, err := ledger.Project(t.Context(), db); n != len(streams) || err != nil {
		t.Fatalf("%d events were folded, want %d: %v", n, len(streams), err)
	}
	return touched(t, db) - before
}

// TestARowOfTheListIsWrittenInPlace: while a charge is carried its row changes, and
// nothing that an index holds.
func TestARowOfTheListIsWrittenInPlace(t *testing.T) {
	testdb.Long(t, "it writes many rows")
	t.Parallel()
	db := reader(t, testdb.URL(t), "")
	unattended(t, db)
	const charges, times = 200, 4
	streams := make([]*ledger.Stream, charges)
	for i := range streams {
		streams[i] = newStream(fmt.Sprintf("ch_%03d", i))
	}
	folded(t, db, streams, opened("acme", 1000, "EUR"))
	for range times {
		folded(t, db, streams, attempt(500))
	}
	db.Pool().Reset() // a session that ends has told what it wrote
	await.Row(t, db, `select n_tup_upd >= $1 from pg_stat_user_tables where relname = 'charge_list'`, charges*times)
	inPlace := collect[int64](t, db, `select n_tup_hot_upd from pg_stat_user_tables where relname = 'charge_list'`)[0]
	if inPlace < charges*times/2 {
		t.Errorf("%d of %d updates were in place", inPlace, charges*times)
	}
}

// TestAPageOfLongStreams: a page is bounded by what it reads as well, else the list
// would stand still before one that takes too long, and be read in the same pieces
// again.
func TestAPageOfLongStreams(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes 20 MB")
	db := testdb.Reused(t)
	unattended(t, db)
	const charges = 420
	long := opened("acme", 1000, "EUR")
	long.Metadata = map[string]string{"note": strings.Repeat("0123456789", 4096)}
	b := &pgx.Batch{}
	for i := range charges {
		if _, err := ledger.Append(b, ledger.New(fmt.Sprintf("ch_%03d", i)), because("1"), long); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n, err := firstPage(t, db)
	if err != nil || n != 156 { // a quarter of a quarter of a page
		t.Errorf("%d events are folded at once (%v), want 156", n, err)
	}
	if rest := caughtUp(t, db); n+rest != charges {
		t.Errorf("%d events are folded in the end", n+rest)
	}
	got, err := ledger.Rebuild(t.Context(), db, nil)
	if err != nil || got.Events != charges || got.Different != 0 || !got.Live {
		t.Errorf("made anew: %+v, %v", got, err)
	}
}
