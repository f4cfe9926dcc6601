package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// judgeList is the verdict on the list of charges, as it was paged through when
// all had come to rest.
func judgeList(seen evidence) []Check {
	return []Check{listedOnce(seen), listedInOrder(seen)}
}

func listedOnce(seen evidence) Check {
	found := listedByID(seen.listed)
	return perCharge("outside: every charge is listed once, as it is shown", seen, func(r record) string {
		return mislisted(r, found[r.id])
	})
}

func mislisted(r record, listed []json.RawMessage) string {
	switch {
	case len(listed) != 1:
		return fmt.Sprintf("%s: listed %d times", r.id, len(listed))
	case !bytes.Equal(listed[0], r.shown):
		return fmt.Sprintf("%s: listed as %s, shown as %s", r.id, listed[0], r.shown)
	}
	return ""
}

func listedInOrder(seen evidence) Check {
	f := about("outside: the list goes from the newest to the oldest", len(seen.plan.Charges))
	for i, charge := range seen.listed {
		complaint := ""
		if i > 0 {
			if newer, older := headOf(seen.listed[i-1]), headOf(charge); older.CreatedAt.After(newer.CreatedAt) {
				complaint = fmt.Sprintf("%s is listed before %s, which is newer", newer.ID, older.ID)
			}
		}
		f.see(complaint)
	}
	return f.result()
}
