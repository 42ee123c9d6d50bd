package commit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func readJSON(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func checkReason(t *testing.T, err error, want signature.Reason) {
	t.Helper()
	var e *signature.Error
	switch {
	case want == "" && err != nil:
		t.Errorf("error %v", err)
	case want != "" && (!errors.As(err, &e) || e.Reason != want):
		t.Errorf("error %v, want reason %s", err, want)
	}
}

func TestSSHSignatures(t *testing.T) {
	var cases []struct {
		Case, Data, Signature, Identity, Namespace, At string
		Signers                                        string `json:"allowed_signers"`
		Reason                                         signature.Reason
	}
	readJSON(t, "ssh.json", &cases)
	if len(cases) != 14 {
		t.Errorf("%d cases, want 14", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Case, func(t *testing.T) {
			at := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
			if c.At != "" {
				var err error
				if at, err = time.ParseInLocation("20060102", c.At, time.Local); err != nil {
					t.Fatal(err)
				}
			}
			signers, err := parseAllowedSigners(read(t, c.Signers))
			var signer allowedSigner
			if err == nil {
				signer, err = verifySSH(signers, read(t, c.Data), read(t, c.Signature), c.Namespace, at)
			}
			if err == nil && !slices.Contains(strings.Split(signer.principals, ","), c.Identity) {
				err = signature.Errorf(signature.UnknownKey, "signed by %s", signer.principals)
			}
			checkReason(t, err, c.Reason)
		})
	}
}

func TestCommits(t *testing.T) {
	repository := filepath.Join(t.TempDir(), "repository")
	git(t, "", "clone", "-q", "--mirror", "testdata/git/site-config.bundle", repository)
	var commits []struct {
		Commit, Name string
		Reason       signature.Reason
	}
	readJSON(t, "git.json", &commits)
	if len(commits) != 19 {
		t.Errorf("%d commits, want 19", len(commits))
	}
	keys, err := ReadKeys("testdata/git/keys")
	if err != nil {
		t.Fatal(err)
	}
	signers := map[string]string{"openpgp": "20DAEC7FA9F900BB23AE546711B45FDCF486852F", "ssh-ed25519": "alice@vendor.example",
		"bob-as-alice": "bob@vendor.example,rob@vendor.example"}
	for _, c := range commits {
		t.Run(c.Name, func(t *testing.T) {
			object := git(t, repository, "cat-file", "commit", c.Commit)
			r, err := keys.Verify(object, time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
			checkReason(t, err, c.Reason)
			if want, ok := signers[c.Name]; ok && r.Signer != want {
				t.Errorf("signer %q, want %q", r.Signer, want)
			}
			if err == nil && (r.Signer == "" || r.Time.IsZero()) || err != nil && r != (signature.Result{}) {
				t.Errorf("result %+v with error %v", r, err)
			}
		})
	}
}

// Whoever serves a commit can change the bytes of its signature, and with them the name of the commit. It stays the same commit.
func TestIdentify(t *testing.T) {
	repository := filepath.Join(t.TempDir(), "repository")
	git(t, "", "clone", "-q", "--mirror", "testdata/git/site-config.bundle", repository)
	var commits []struct{ Commit, Name string }
	readJSON(t, "git.json", &commits)
	keys, err := ReadKeys("testdata/git/keys")
	if err != nil {
		t.Fatal(err)
	}
	rewrap := func(object string) string { // one line of the armour becomes two
		lines := strings.Split(object, "\n")
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, " ") && len(line) > 60 })
		lines[i] = lines[i][:20] + "\n " + lines[i][20:]
		return strings.Join(lines, "\n")
	}
	tested := 0
	for _, c := range commits {
		if c.Name != "openpgp" && c.Name != "ssh-ed25519" {
			continue
		}
		tested++
		object := string(git(t, repository, "cat-file", "commit", c.Commit))
		signed, committed := Identify([]byte(object))
		if committed.IsZero() {
			t.Errorf("%s has no date", c.Name)
		}
		for what, change := range map[string]struct {
			object         string
			same, accepted bool
		}{
			"other line breaks":           {rewrap(object), true, true},
			"another header":              {strings.Replace(object, "gpgsig ", "gpgsig-sha256 ", 1), true, true},
			"text after the armour":       {strings.Replace(object, "SIGNATURE-----\n\n", "SIGNATURE-----\n text\n\n", 1), true, c.Name == "openpgp"},
			"no signature":                {signatureOf.ReplaceAllString(object, ""), true, false},
			"another message":             {object + "x", false, false},
			"a header after the armour":   {strings.Replace(object, "SIGNATURE-----\n\n", "SIGNATURE-----\nencoding latin1\n\n", 1), false, false},
			"a continued header after it": {strings.Replace(object, "SIGNATURE-----\n\n", "SIGNATURE-----\nmergetag a\n b\n\n", 1), false, false},
			"another date":                {strings.Replace(object, "> 1", "> 2", 2), false, false},
		} {
			got, _ := Identify([]byte(change.object))
			if change.object == object || (got == signed) != change.same {
				t.Errorf("%s with %s: it is the same commit: %v, want %v", c.Name, what, got == signed, change.same)
			}
			if _, err := keys.Verify([]byte(change.object), time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)); (err == nil) != change.accepted {
				t.Errorf("%s with %s: %v, want accepted: %v", c.Name, what, err, change.accepted)
			}
		}
	}
	if tested != 2 {
		t.Errorf("%d commits were tested", tested)
	}
}

// signatureOf matches the header with the signature.
var signatureOf = regexp.MustCompile(`(?m)^gpgsig .*\n(?: .*\n)*`)

// The date of a commit decides whether its key was valid, so it must be that of its signature, and not in the future.
func TestDatesOfCommits(t *testing.T) {
	const format = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\ncommitter A <a@example.com> %d +0000\n%s\nmessage\n"
	now := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	at := func(when time.Time) *packet.Config {
		return &packet.Config{Time: func() time.Time { return when }, Algorithm: packet.PubKeyAlgoEdDSA}
	}
	key, err := openpgp.NewEntity("A", "", "a@example.com", at(now.AddDate(-1, 0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "a.gpg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(key.Serialize(file), file.Close()); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	const second = time.Second
	for _, tt := range []struct {
		committed, signed time.Duration // after now
		want              signature.Reason
	}{
		{0, 0, ""}, {-time.Hour, -time.Hour, ""}, {-time.Hour, 0, ""}, {0, -signature.MaxSkew, ""}, {signature.MaxSkew, signature.MaxSkew, ""},
		{signature.MaxSkew + second, 0, signature.FromFuture}, {0, -signature.MaxSkew - second, signature.OlderThanCommit},
	} {
		committed := now.Add(tt.committed).Unix()
		var armoured strings.Builder
		unsigned := fmt.Sprintf(format, committed, "")
		if err := openpgp.ArmoredDetachSign(&armoured, key, strings.NewReader(unsigned), at(now.Add(tt.signed))); err != nil {
			t.Fatal(err)
		}
		header := "gpgsig " + strings.ReplaceAll(armoured.String(), "\n", "\n ") + "\n"
		_, err := keys.Verify(fmt.Appendf(nil, format, committed, header), now)
		checkReason(t, err, tt.want)
	}
}

// git runs git without the configuration of the user.
func git(t need.T, dir string, args ...string) []byte {
	c := need.Command(t, "git", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "TZ=UTC")
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatal(string(exit.Stderr))
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAllowedSigners(t *testing.T) {
	key := strings.Fields(string(read(t, "ssh/allowed_signers")))[7] // the key of alice
	for line, wantOK := range map[string]bool{
		"a ssh-ed25519 " + key:                                             true,
		"a ssh-ed25519 " + key + " comment with blanks":                    true,
		`a,b namespaces="git" ssh-ed25519 ` + key:                          true,
		`a NameSpaces="git,x",valid-before="20300101Z" ssh-ed25519 ` + key: true,
		`"a" valid-after="202601011200" ssh-ed25519 ` + key:                true,
		"# comment":                           true,
		"":                                    true,
		"a ssh-rsa " + key:                    false,
		"ssh-ed25519 " + key:                  false,
		`a cert-authority ssh-ed25519 ` + key: false,
		`a valid-after="soon" ssh-ed25519 ` + key:                            false,
		`a valid-after=20260101 ssh-ed25519 ` + key:                          false,
		`a valid-after="20260101",valid-after="20250101" ssh-ed25519 ` + key: false,
		`a no-touch-required ssh-ed25519 ` + key:                             false,
		"a ssh-ed25519 " + key[:40]:                                          false,
		"a ssh-ed25519-cert-v01@openssh.com " + key:                          false,
	} {
		_, err := parseAllowedSigners([]byte(line))
		if (err == nil) != wantOK {
			t.Errorf("%q: error %v", line, err)
		}
		if err != nil {
			checkReason(t, err, signature.BadKeyFile)
		}
	}
}

// A folder without keys, and a folder with a damaged file, verify nothing.
func TestFoldersWithoutKeys(t *testing.T) {
	empty := t.TempDir()
	_, err := ReadKeys(empty)
	checkReason(t, err, signature.NoKeys)
	_, err = ReadKeys(filepath.Join(empty, "missing"))
	checkReason(t, err, signature.NoKeys)
	for name, content := range map[string]string{"allowed_signers": "nonsense\n", "a.asc": "nonsense", "b.gpg": "\x99\x01"} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("testdata/git/keys")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = ReadKeys(dir)
		checkReason(t, err, signature.BadKeyFile)
	}
}

func FuzzCommit(f *testing.F) {
	var commits []struct{ Commit string }
	readJSON(f, "git.json", &commits)
	repository := filepath.Join(f.TempDir(), "repository")
	git(f, "", "clone", "-q", "--mirror", "testdata/git/site-config.bundle", repository)
	known := map[string]bool{}
	for _, c := range commits {
		object := git(f, repository, "cat-file", "commit", c.Commit)
		if o, err := parse(object); err == nil {
			known[string(o.signed)] = true
		}
		f.Add(object)
	}
	keys, err := ReadKeys("testdata/git/keys")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		r, err := keys.Verify(object, time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
		var e *signature.Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Error(err)
			}
			return
		}
		if o, err := parse(object); err != nil || !known[string(o.signed)] {
			t.Errorf("accepted as signed by %s: %q", r.Signer, object)
		}
	})
}

func FuzzAllowedSigners(f *testing.F) {
	f.Add(read(f, "ssh/allowed_signers"))
	f.Add(read(f, "ssh/allowed_signers.bad"))
	f.Add([]byte(`a namespaces="git,x",valid-before="20300101Z" ssh-ed25519 AAAA`))
	f.Fuzz(func(t *testing.T, b []byte) {
		signers, err := parseAllowedSigners(b)
		for _, s := range signers {
			if err != nil || s.key == nil || s.principals == "" {
				t.Errorf("%+v, %v", s, err)
			}
		}
	})
}
