package migrations_test

func retentionGuards() []guard {
	const (
		said   = `insert into retention_windows (worker, outbox_window, inbox_window) values ('w', '1 day', '1 week')`
		leased = `insert into janitor_lease (holder, until) values ('w', now())`
	)
	return []guard{
		{"retention_windows_pkey", "a worker says one thing", []string{said}, said},
		{
			"retention_windows_inbox_longer", "an inbox does not forget with the outbox", nil,
			`insert into retention_windows (worker, outbox_window, inbox_window) values ('w', '24 hours', '1 day')`,
		},
		{
			"retention_windows_inbox_longer", "nor before it, after a change of mind",
			[]string{said},
			`update retention_windows set outbox_window = '8 days'`,
		},
		{
			"retention_windows_outbox_window_check", "an outbox keeps messages for a while", nil,
			`insert into retention_windows (worker, outbox_window, inbox_window) values ('w', '0', '1 day')`,
		},
		{"janitor_lease_pkey", "there is one lease", []string{leased}, leased},
		{
			"janitor_lease_only_one_check", "nor is there another beside it", nil,
			`insert into janitor_lease (only_one, holder, until) values (false, 'w', now())`,
		},
	}
}
