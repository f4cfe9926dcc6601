package upkeep_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/upkeep"
)

func TestBind(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	var wg sync.WaitGroup
	refused := make([]error, 2)
	for i, account := range []string{"acct_1", "acct_2"} {
		wg.Go(func() { refused[i] = upkeep.Bind(t.Context(), db, account, false) })
	}
	wg.Wait()
	bound, other := "acct_1", "acct_2"
	if refused[0] != nil {
		bound, other = other, bound
	}
	if one := errors.Join(refused...); !errors.Is(one, upkeep.ErrOtherAccount) || (refused[0] == nil) == (refused[1] == nil) {
		t.Fatalf("of two workers that are first at once, one binds the database and the other is refused: %v", refused)
	}
	for name, test := range map[string]struct {
		account string
		live    bool
		want    error
	}{
		"the same account": {bound, false, nil},
		"another account":  {other, false, upkeep.ErrOtherAccount},
		"live mode":        {bound, true, upkeep.ErrOtherAccount},
	} {
		if err := upkeep.Bind(t.Context(), db, test.account, test.live); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
