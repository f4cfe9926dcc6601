package reference_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/reference"
)

func TestReplaced(t *testing.T) {
	t.Parallel()
	const page = "# Page\n\nBy hand.\n\n## a\n\nold\n\n## b\n\nkept\n"
	for name, test := range map[string]struct{ title, text, want string }{
		"a section that differs is replaced":  {"a", "new\n", "# Page\n\nBy hand.\n\n## a\n\nnew\n\n## b\n\nkept\n"},
		"a section that is equal is kept":     {"a", "old", page},
		"a section that is missing is added":  {"c", "new", page + "\n## c\n\nnew\n"},
		"the last section ends the page":      {"b", "new", "# Page\n\nBy hand.\n\n## a\n\nold\n\n## b\n\nnew\n"},
		"a title is compared as a whole":      {"", "new", page + "\n## \n\nnew\n"},
		"subsections belong to their section": {"b", "### c\n\nnew", "# Page\n\nBy hand.\n\n## a\n\nold\n\n## b\n\n### c\n\nnew\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written, got := reference.Replaced(page, test.title, test.text)
			if diff := cmp.Diff(test.want, got); diff != "" || written != page {
				t.Errorf("%q (-want +got):\n%s", written, diff)
			}
		})
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	if got := reference.Table([]string{"a"}, nil); got != "" {
		t.Errorf("without rows it is %q", got)
	}
	const want = "| a | b |\n|---|---|\n| x \\| y | two lines |\n\n"
	if got := reference.Table([]string{"a", "b"}, [][]string{{"x | y", "two\nlines"}}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
