package groupcommit_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
)

// A pool with no settings of ours.
func TestCommitter_onAPlainPool(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testdb.URL(t))
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	testdb.Exec(t, pool, `create table effects (id int constraint effects_once primary key, twin int)`)
	c := groupcommit.New(pool, groupcommit.Options{Writes: declared()})
	testdb.Must(t, c.Commit(t.Context(), batch(3)))
	errs := together(t, c, committing(c, batch(1), batch(2), batch(3))...)
	if groupcommit.Constraint(errs[2]) != "effects_once" {
		t.Errorf("the error is %v", errs[2])
	}
	wantNoErrors(t, errs[:2])
	wantStored(t, pool, 1, 2, 3)
	if c.Stats().Refusals == 0 {
		t.Error("no batches shared a transaction")
	}
}

func TestNew_panicsForWhatItCannotUse(t *testing.T) {
	t.Parallel()
	one := groupcommit.Statement{SQL: insertA}
	for name, makes := range map[string]func(){
		"no pool":           func() { groupcommit.New(nil, groupcommit.Options{}) },
		"a statement twice": func() { groupcommit.NewStatements(one, one) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", name)
				}
			}()
			makes()
		}()
	}
}
