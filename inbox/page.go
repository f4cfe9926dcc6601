package inbox

import "crypto/sha256"

// A page may bring a message more than once. Its first delivery decides whether it
// is new, and what of it is kept; the others are counted, or put aside, by
// statements that follow in the same transaction and find it there. So a page has
// the effect of its messages one after another.

type identity struct{ receiver, message string }

// apart takes of each message the first delivery, so that no statement meets it
// twice. Both parts keep their order.
func apart(all []delivery) (now, later []delivery) {
	seen := make(map[identity]bool, len(all))
	now = make([]delivery, 0, len(all))
	for _, d := range all {
		if id := (identity{d.receiver, d.message.ID}); seen[id] {
			later = append(later, d)
		} else {
			seen[id] = true
			now = append(now, d)
		}
	}
	return now, later
}

// together makes one of deliveries of the same message with the same payload, so
// that however often a page has it, it takes one statement more.
func together(all []delivery) (fewer []delivery) {
	type content struct {
		identity
		hash [sha256.Size]byte
	}
	at := make(map[content]int, len(all))
	for _, d := range all {
		c := content{identity{d.receiver, d.message.ID}, d.hash}
		if i, known := at[c]; known {
			fewer[i].more++
		} else {
			at[c] = len(fewer)
			fewer = append(fewer, d)
		}
	}
	return fewer
}
