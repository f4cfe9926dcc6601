package arch_test

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"go.yaml.in/yaml/v3"
)

// service is what docker-compose.yml says of a container, as far as it confines it.
type service struct {
	Image       string
	User        string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	Configs     []any    // Compose copies their content into the container
	Privileged  bool
	Environment map[string]string
	Command     []string
}

const ourImage = "payonce:compose"

func readServices(t *testing.T) map[string]service {
	t.Helper()
	var compose struct{ Services map[string]service }
	must(t, yaml.Unmarshal([]byte(read(t, "docker-compose.yml")), &compose))
	if len(compose.Services) < 8 {
		t.Fatalf("it has %d services", len(compose.Services))
	}
	return compose.Services
}

// TestCompose_containersAreConfined also looks that a variable that is given to a program of ours is a setting.
func TestCompose_containersAreConfined(t *testing.T) {
	t.Parallel()
	// The image's own user is the last that the Dockerfile names.
	users := regexp.MustCompile(`(?m)^USER (\S+)$`).FindAllStringSubmatch(read(t, "Dockerfile"), -1)
	if len(users) == 0 {
		t.Fatal("the Dockerfile names no user")
	}
	programs := make(map[string]bool)
	for name, s := range readServices(t) {
		user := s.User
		if s.Image == ourImage {
			programs[s.Command[0]] = true
			user = cmp.Or(user, users[len(users)-1][1])
			for variable := range s.Environment {
				if variable != "GOMEMLIMIT" && !strings.Contains(read(t, "docs/reference/settings.md"), "\n| `"+variable+"` |") {
					t.Errorf("%s sets %s, which is no setting", name, variable)
				}
			}
		}
		if user == "" || user == "root" || strings.HasPrefix(user, "0") {
			t.Errorf("%s: its user is %q", name, user)
		}
		if !s.ReadOnly && len(s.Configs) == 0 || s.Privileged {
			t.Errorf("%s: its files can be written", name)
		}
		if strings.Join(s.CapDrop, "") != "ALL" || strings.Join(s.SecurityOpt, "") != "no-new-privileges:true" {
			t.Errorf("%s drops the capabilities %q, and its security options are %q", name, s.CapDrop, s.SecurityOpt)
		}
	}
	if len(programs) != 4 {
		t.Errorf("it runs %v", programs)
	}
}

var (
	images  = regexp.MustCompile(`(?m)^(?:FROM| +image:) (\S+)`)
	actions = regexp.MustCompile(`(?m)uses: (.*)$`)

	toVersion = regexp.MustCompile(`:v?\d+(\.\d+)+(@sha256:[0-9a-f]{64})?$`)
	toCommit  = regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
)

// versionless has the images that are published without a tag of a version.
var versionless = regexp.MustCompile(`^gcr\.io/distroless/static-debian12:nonroot(@sha256:[0-9a-f]{64})?$`)

// unpinned are the images and the GitHub actions of a file whose content can change although
// the file does not.
func unpinned(text string) (found []string, all int) {
	for _, match := range images.FindAllStringSubmatch(text, -1) {
		if all++; match[1] != ourImage && !toVersion.MatchString(match[1]) && !versionless.MatchString(match[1]) {
			found = append(found, match[1])
		}
	}
	for _, match := range actions.FindAllStringSubmatch(text, -1) {
		if all++; !toCommit.MatchString(match[1]) {
			found = append(found, match[1])
		}
	}
	return found, all
}

func TestSupply_imagesAndActionsArePinned(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	must(t, err)
	for _, file := range append(files, filepath.Join(root, "Dockerfile"), filepath.Join(root, "docker-compose.yml")) {
		text, err := os.ReadFile(file)
		must(t, err)
		found, all := unpinned(string(text))
		if all == 0 || len(found) > 0 {
			t.Errorf("%s: of %d images and actions these are not pinned: %q", file, all, found)
		}
	}
	planted := "FROM golang:latest\n  image: redis\n  image: postgres:17\n  image: redis:7.2.1\n- uses: actions/cache@v4\n"
	if found, all := unpinned(planted); len(found) != 4 || all != 5 {
		t.Errorf("of 4 planted in 5 it found %q in %d", found, all)
	}
}

// TestImage_context: Docker leaves out no file that the programs are built from, and lets no test and
// no hidden file through.
func TestImage_context(t *testing.T) {
	t.Parallel()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	must(t, err)
	matcher, err := patternmatcher.New(patterns)
	must(t, err)
	wanted := map[string]bool{
		"go.mod": true, "go.sum": true, "internal/console/assets/new.woff2": true,

		"cmd/api/main_test.go": false, "migrations/testdata/rows.sql": false, "docs/images/flow.webp": false, "e2e/docs.go": false,
		"dist/payonce.tar.gz": false, "payonce": false, ".env": false, ".git/config": false, "cmd/worker/.env": false,
		"internal/stripe/.cache/key": false, "docs/reference/.settings.md.swp": false,
	}
	isProgram := func(p pkg) bool { return under(local(p.ImportPath), "cmd") }
	for _, p := range list(t) {
		linksIt := func(program pkg) bool { return isProgram(program) && slices.Contains(program.Deps, p.ImportPath) }
		for _, file := range slices.Concat(p.GoFiles, p.EmbedFiles) {
			if isProgram(p) || slices.ContainsFunc(list(t), linksIt) {
				wanted[local(p.ImportPath)+"/"+file] = true
			}
		}
	}
	for path, want := range wanted {
		if out, err := matcher.MatchesOrParentMatches(path); err != nil || out == want {
			t.Errorf("%s is in the context: %v (%v), want %v", path, !out, err, want)
		}
	}
	if len(wanted) < 200 {
		t.Errorf("the programs are built from %d files", len(wanted))
	}
}
