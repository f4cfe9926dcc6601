package demo

import (
	"context"
	"encoding/json"
	"time"
)

// listPatience is how long the list may take to have caught up with the charges.
const listPatience = 15 * time.Second

// list keeps what the charges are shown as, one by one, and pages through the list
// until it shows them so, or its patience ends. It returns the last walk.
func (t *traffic) list(ctx context.Context, records []record) []json.RawMessage {
	for i := range records {
		if r := &records[i]; r.id != "" {
			t.await(ctx, "/v1/charges/"+r.id, &r.shown, func() bool { return true })
		}
	}
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	var listed []json.RawMessage
	for {
		walk, whole := t.walk(ctx)
		if whole {
			listed = walk
		}
		if whole && countUnlisted(records, listed) == 0 || wait(ctx, 100*time.Millisecond) != nil {
			return listed
		}
	}
}

// walk pages through the whole list of the merchant's charges.
func (t *traffic) walk(ctx context.Context) (charges []json.RawMessage, whole bool) {
	after := ""
	for {
		var page struct {
			Data []json.RawMessage `json:"data"`
			More bool              `json:"has_more"`
		}
		if t.client.get(ctx, "/v1/charges?limit=50&starting_after="+after, &page) != nil {
			return charges, false
		}
		charges = append(charges, page.Data...)
		if !page.More || len(page.Data) == 0 {
			return charges, true
		}
		after = headOf(page.Data[len(page.Data)-1]).ID
	}
}

// head is what the order of the list is made of.
type head struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
}

func headOf(charge json.RawMessage) head {
	var h head
	_ = json.Unmarshal(charge, &h) // what is no charge has no id, and is complained of
	return h
}

func countUnlisted(records []record, listed []json.RawMessage) int {
	n := 0
	found := listedByID(listed)
	for _, r := range records {
		if mislisted(r, found[r.id]) != "" {
			n++
		}
	}
	return n
}

func listedByID(listed []json.RawMessage) map[string][]json.RawMessage {
	found := map[string][]json.RawMessage{}
	for _, charge := range listed {
		id := headOf(charge).ID
		found[id] = append(found[id], charge)
	}
	return found
}
