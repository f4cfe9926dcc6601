package console_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// TestFlow_readsABoundedPart counts the events that the statement of the Flow page reads of 2,000.
func TestFlow_readsABoundedPart(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("flow.sql")
	testdb.Must(t, err)
	db := testdb.Open(t)
	testdb.Exec(t, db.Pool(), `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select md5(n::text)::uuid, 'ch_' || n, 1, 'charge.requested.v1', 1, 'acme', '{}', '{}', now() from generate_series(1, 2000) n`)
	plan := testdb.All[string](t, db, "explain (analyze) "+string(sql), []string{"fulfillment"}, []int64{}, "charges")
	scan, scans := regexp.MustCompile(`Scan.* on ledger_events\b.* rows=(\d+)(\.\d+)? loops`), 0
	for _, line := range plan {
		found := scan.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		scans++
		if n, err := strconv.Atoi(found[1]); err != nil || n > 400 {
			t.Errorf("it reads %s events:%s", found[1], line)
		}
	}
	if scans == 0 {
		t.Errorf("it reads no event: %q", plan)
	}
}
