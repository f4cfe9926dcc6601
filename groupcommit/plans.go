package groupcommit

import "github.com/jackc/pgx/v5"

// indexScans are settings that are off where a statement must read along indexes alone.
// Plans are kept, and a plan that was made while a table was small, or never analyzed,
// would read the whole table later. A plan that uses what is off looks expensive enough to
// compile, hence jit.
var indexScans = []string{
	"enable_bitmapscan", "enable_hashjoin", "enable_incremental_sort", "enable_mergejoin",
	"enable_seqscan", "enable_sort", "jit",
}

// IndexScans returns the settings of a statement or session that reads along indexes alone.
func IndexScans() map[string]string {
	settings := make(map[string]string, len(indexScans))
	for _, name := range indexScans {
		settings[name] = "off"
	}
	return settings
}

// QueueIndexScans lets the statements that follow in a batch read along indexes alone. The
// settings end with the transaction.
func QueueIndexScans(b *pgx.Batch) {
	b.Queue(`select set_config(name, 'off', true) from unnest($1::text[]) as s(name)`, indexScans)
}
