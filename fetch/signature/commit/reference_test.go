package commit

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var combinations = flag.Int("signature.combinations", 6, "random combinations in TestAgreesWithSSHKeygen and TestAgreesWithGit")

// signer is a key with its line of the allowed signers file.
type signer struct{ principal, file, public string }

func makeSigners(t *testing.T, dir string) []signer {
	var signers []signer
	for i, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		s := signer{principal: fmt.Sprintf("signer%d@example.com", i), file: filepath.Join(dir, kind)}
		if out, err := need.Command(t, "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", s.file).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		b, err := os.ReadFile(s.file + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		s.public = strings.TrimSpace(string(b))
		signers = append(signers, s)
	}
	return signers
}

// randomOptions returns the options of a line: namespaces, and days of June 2026.
func randomOptions(r *rand.Rand) string {
	var options []string
	if r.IntN(3) == 0 {
		options = append(options, []string{`namespaces="git"`, `namespaces="file"`, `namespaces="git,file"`}[r.IntN(3)])
	}
	if r.IntN(3) == 0 {
		options = append(options, fmt.Sprintf(`valid-after="202606%02dZ"`, 1+r.IntN(28)))
	}
	if r.IntN(3) == 0 {
		options = append(options, fmt.Sprintf(`valid-before="202606%02d1200Z"`, 1+r.IntN(28)))
	}
	if len(options) == 0 {
		return ""
	}
	return strings.Join(options, ",") + " "
}

// allowedSignersFile writes lines for some of the signers.
func allowedSignersFile(t *testing.T, r *rand.Rand, file string, signers []signer) []byte {
	text := "# signers\n"
	for _, s := range signers {
		if r.IntN(4) > 0 {
			text += s.principal + " " + randomOptions(r) + s.public + "\n"
		}
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

func TestAgreesWithSSHKeygen(t *testing.T) {
	need.Programs(t, "ssh-keygen")
	dir := t.TempDir()
	signers := makeSigners(t, dir)
	r := rand.New(rand.NewPCG(7, 8))
	file, message := filepath.Join(dir, "allowed_signers"), filepath.Join(dir, "message")
	accepted := 0
	for i := range *combinations {
		lines := allowedSignersFile(t, r, file, signers)
		data := []byte(fmt.Sprintf("message %d", r.Uint64()))
		if err := os.WriteFile(message, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := signers[r.IntN(len(signers))]
		os.Remove(message + ".sig") // ssh-keygen asks before it overwrites
		signedFor, askedFor := []string{"git", "file"}[r.IntN(2)], []string{"git", "file"}[r.IntN(2)]
		if out, err := need.Command(t, "ssh-keygen", "-q", "-Y", "sign", "-f", s.file, "-n", signedFor, message).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if r.IntN(4) == 0 {
			data[r.IntN(len(data))] ^= 1
		}
		day := time.Date(2026, 6, 1+r.IntN(28), 6, 0, 0, 0, time.UTC)
		verify := need.Command(t, "ssh-keygen", "-Y", "verify", "-f", file, "-I", s.principal, "-n", askedFor, "-s", message+".sig",
			"-O", "verify-time="+day.Format("20060102150405Z"))
		verify.Env = append(os.Environ(), "TZ=UTC")
		verify.Stdin = bytes.NewReader(data)
		out, theirs := verify.CombinedOutput()
		sig, err := os.ReadFile(message + ".sig")
		if err != nil {
			t.Fatal(err)
		}
		allowed, err := parseAllowedSigners(lines)
		if err != nil {
			t.Fatal(err)
		}
		got, ours := verifySSH(allowed, data, sig, askedFor, day)
		if (ours == nil) != (theirs == nil) || ours == nil && got.principals != s.principal {
			t.Errorf("combination %d: %q, %v; ssh-keygen: %v, %s\n%s", i, got.principals, ours, theirs, out, lines)
		}
		if ours == nil {
			accepted++
		}
	}
	if accepted == 0 || accepted == *combinations {
		t.Errorf("%d of %d combinations are accepted", accepted, *combinations)
	}
}

func TestAgreesWithGit(t *testing.T) {
	need.Programs(t, "ssh-keygen", "git")
	dir := t.TempDir()
	signers := makeSigners(t, dir)
	r := rand.New(rand.NewPCG(9, 10))
	repository, keys := filepath.Join(dir, "repository"), filepath.Join(dir, "keys")
	git(t, "", "init", "-q", repository)
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for i := range *combinations {
		file := filepath.Join(keys, allowedSigners)
		lines := allowedSignersFile(t, r, file, signers[:2])
		s := signers[r.IntN(len(signers))]
		day := time.Date(2026, 6, 1+r.IntN(28), 6, 0, 0, 0, time.UTC)
		args := []string{"-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "gpg.format=ssh", "-c", "user.signingkey=" + s.file,
			"commit", "-q", "--allow-empty", "-m", fmt.Sprintf("commit %d", i)}
		if r.IntN(8) > 0 {
			args = append(args, "-S")
		}
		c := need.Command(t, "git", args...)
		c.Dir = repository
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_COMMITTER_DATE="+day.Format(time.RFC3339),
			"GIT_AUTHOR_DATE="+day.Format(time.RFC3339))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		object := git(t, repository, "cat-file", "commit", "HEAD")
		if r.IntN(4) == 0 { // the message is the last line
			object[len(object)-2] ^= 1
			hash := need.Command(t, "git", "hash-object", "-t", "commit", "-w", "--stdin")
			hash.Dir, hash.Stdin = repository, bytes.NewReader(object)
			out, err := hash.Output()
			if err != nil {
				t.Fatal(err)
			}
			git(t, repository, "reset", "-q", "--soft", strings.TrimSpace(string(out)))
		}
		verify := need.Command(t, "git", "-c", "gpg.ssh.allowedSignersFile="+file, "verify-commit", "HEAD")
		verify.Dir = repository
		verify.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "TZ=UTC")
		out, theirs := verify.CombinedOutput()
		var ours error
		if k, err := ReadKeys(keys); err != nil {
			ours = err
		} else {
			_, ours = k.Verify(object, day)
		}
		if (ours == nil) != (theirs == nil) {
			t.Errorf("combination %d: %v; git: %v, %s\n%s", i, ours, theirs, out, lines)
		}
		if ours == nil {
			accepted++
		}
	}
	if accepted == 0 || accepted == *combinations {
		t.Errorf("%d of %d combinations are accepted", accepted, *combinations)
	}
}
