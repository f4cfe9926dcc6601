package groupcommit_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestNewStatements_panicsForOneTwice(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a statement is accepted twice")
		}
	}()
	groupcommit.NewStatements(groupcommit.Statement{SQL: insert}, groupcommit.Statement{SQL: insert})
}

// A commit reports what its declared statements wake, each name once, and one that is refused
// or whose outcome is unknown does not.
func TestCommit_reportsWhatItWakes(t *testing.T) {
	t.Parallel()
	direct, address := effects(t, postgres.Options{})
	cutter := failpoint.StartCutter(t, address)
	wakes := func(arguments []any) string {
		id, _ := arguments[0].(int)
		return fmt.Sprint("odd ", id%2 == 1)
	}
	woken := make(chan []string, 10)
	c := groupcommit.New(testdb.OpenAt(t, cutter.URL(), postgres.Options{}).Pool(), groupcommit.Options{
		Writes:    groupcommit.NewStatements(groupcommit.Statement{SQL: insert, Wakes: wakes}, groupcommit.Statement{SQL: insertTwin}),
		Committed: func(names []string) { woken <- names },
	})
	undeclared, silent := batch(10), &pgx.Batch{}
	undeclared.Queue(`select 1`)
	silent.Queue(insertTwin, 11, 11)
	for _, test := range []struct {
		batch   *pgx.Batch
		outcome groupcommit.Outcome
		want    []string
	}{
		{batch(1, 3, 2, 5), groupcommit.Committed, []string{"odd true", "odd false"}},
		{undeclared, groupcommit.Committed, []string{"odd false"}},
		{batch(7, 1), groupcommit.Refused, nil},
		{silent, groupcommit.Committed, nil},
	} {
		if err := c.Commit(t.Context(), test.batch); groupcommit.OutcomeOf(err) != test.outcome {
			t.Errorf("the error is %v", err)
		}
		wantWoken(t, woken, test.want)
	}
	wantNoErrors(t, together(t, c, committing(c, batch(21), batch(23), batch(25))...))
	wantWoken(t, woken, []string{"odd true"})
	cutter.Arm(failpoint.After, 2)
	if err := c.Commit(t.Context(), batch(30, 32)); groupcommit.OutcomeOf(err) != groupcommit.Unknown {
		t.Errorf("the error is %v, want an unknown outcome", err)
	}
	wantWoken(t, woken, nil)
	wantStored(t, direct, 1, 2, 3, 5, 10, 11, 21, 23, 25, 30, 32)
}

func wantWoken(t *testing.T, woken <-chan []string, want []string) {
	t.Helper()
	var got []string
	select {
	case got = <-woken:
	default:
	}
	testrun.Same(t, "woken", want, got)
}
