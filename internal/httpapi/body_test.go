package httpapi_test

import (
	"slices"
	"strconv"
	"strings"
)

// body is a charge request with members as they are written here: pairs of a
// name and its raw JSON, which replace or add a member; "" leaves it out.
func body(changes ...string) string {
	members := []string{
		"order_id", `"order-1"`,
		"amount", "2000",
		"currency", `"USD"`,
		"payment_method", `"pm_card_visa"`,
	}
	for change := range slices.Chunk(changes, 2) {
		at := -1
		for i := 0; i < len(members); i += 2 {
			if members[i] == change[0] {
				at = i
			}
		}
		if at < 0 {
			members = append(members, change...)
			continue
		}
		members[at+1] = change[1]
	}
	var written []string
	for member := range slices.Chunk(members, 2) {
		if member[1] != "" {
			written = append(written, `"`+member[0]+`":`+member[1])
		}
	}
	return "{" + strings.Join(written, ",") + "}"
}

// text is a JSON string of n characters of two bytes each.
func text(n int) string { return `"` + strings.Repeat("é", n) + `"` }

// items is a JSON array of n different items.
func items(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = `{"sku":"sku-` + strconv.Itoa(i) + `","quantity":1}`
	}
	return "[" + strings.Join(list, ",") + "]"
}

// pairs is a JSON object of n pairs.
func pairs(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = `"name-` + strconv.Itoa(i) + `":"value"`
	}
	return "{" + strings.Join(list, ",") + "}"
}
