package postgres

// inserts are the plain inserts of units, those of one text and tenant side by side.
// Each unit's own stay in their order. Those of several units touch each other by
// constraints alone, and in whatever order these refuse, they refuse the transaction.
// Left are those of each unit, and none are when it returns.
func inserts(left [][]statement, rows int) []statement {
	var all []statement
	for i := range left {
		for len(left[i]) > 0 {
			first := left[i][0]
			var same []statement
			for j := i; j < len(left); j++ {
				for len(left[j]) > 0 && left[j][0].sql == first.sql && left[j][0].tenant == first.tenant {
					same = append(same, left[j][0])
					left[j] = left[j][1:]
				}
			}
			all = append(all, merged(same, rows)...)
		}
	}
	return all
}
