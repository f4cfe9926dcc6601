package groupcommit_test

import (
	"testing"

	"github.com/payonce/payonce/groupcommit"
)

func TestNew_panicsForWhatItCannotUse(t *testing.T) {
	t.Parallel()
	one := groupcommit.Statement{SQL: insert}
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
