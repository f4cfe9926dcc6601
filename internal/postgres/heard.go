package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Settings ride in the first packet of a session, which a pooler may answer itself
// and forward in part. The role is the one of them that pg_settings does not show.
const selectUnheard = `
select w.name
  from unnest($1::text[], $2::text[]) as w (name, value)
  left join pg_settings s
    on lower(s.name) = lower(w.name)
 where case when w.name = 'role'
            then current_setting('role') <> w.value
            else s.source <> 'client'
                 and s.setting <> w.value
       end
 order by w.name collate "C"
 limit 1`

// heard looks that the session has the settings that it was opened with: what they
// bound would not be bound, and a role would be the user's own.
func heard(ctx context.Context, q Querier, settings map[string]string) error {
	names := slices.Sorted(maps.Keys(settings))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = settings[name]
	}
	var name string
	switch err := q.QueryRow(ctx, selectUnheard, names, values).Scan(&name); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return fmt.Errorf("the database's sessions have not heard their %s: a pooler leaves it out, so let DATABASE_URL name the server itself", name)
}
