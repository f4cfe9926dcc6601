package migrations_test

func projectionGuards() []guard {
	const (
		advance = `update projections set txid = '7', position = 7, batch = batch + 1, after = 0 where state = 'live'`
		build   = `insert into projections (state) values ('building')`
		retire  = `update projections set state = 'retired', batch = batch + 1, after = batch where state = 'live'`
		listed  = `insert into charge_list values (1, 'ch_1', 'acme', 'o', 'pending', now(), 1, '{}')`
		balance = `insert into account_balances values (1, 'acme', 'a:EUR', 1, 0)`
	)
	takeOver := func(txid, position string) string {
		return `
update projections
   set state = 'live', batch = batch + 1, after = batch, took_over_txid = '` + txid + `', took_over_position = ` + position + `
 where state = 'building'`
	}
	return []guard{
		{"projections_folded_once", "two do not fold the same events", []string{advance}, advance},
		{"projections_folded_once", "nobody folds into what was retired", []string{retire}, `update projections set batch = batch + 1, after = 0`},
		{"projections_one_live", "one generation is live", nil, `insert into projections (state) values ('live')`},
		{"projections_one_live", "also while one takes over", []string{build}, takeOver("0", "0")},
		{"projections_one_building", "one generation is built", []string{build}, build},
		{"projections_never_behind", "a list does not go back", []string{build, retire}, takeOver("1", "0")},
		{"projections_never_behind", "nor by one event of a transaction", []string{build, retire}, takeOver("0", "1")},
		{"projections_state_check", "a generation is in a known state", nil, `insert into projections (state) values ('stale')`},
		{"projections_pkey", "a generation has its number alone", nil, `insert into projections (generation, state) overriding system value values (1, 'building')`},
		{"charge_list_once", "a charge is listed once", []string{listed}, listed},
		{"account_balances_once", "an account has one balance", []string{balance}, balance},
	}
}
