package clone

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// Every user of a machine can read the arguments of a process, and its children inherit the environment. So
// neither the passphrase nor the key of the disk may be in them.
func TestCryptsetupGetsNoSecretInArgumentsOrEnvironment(t *testing.T) {
	need.Programs(t, "cryptsetup")
	program, err := findProgram(os.Getenv("PATH") + ":" + programFolders)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	calls := filepath.Join(folder, "calls")
	script := fmt.Sprintf("#!/bin/sh\necho call >>%s\ncat /proc/$$/cmdline /proc/$$/environ >>%s\nexec %s \"$@\"\n", calls, calls, program)
	if err := os.WriteFile(filepath.Join(folder, "cryptsetup"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	t.Setenv("ENVIRONMENT_OF_THE_DAEMON", "which cryptsetup must not inherit")

	const passphrase = "correct horse battery staple"
	r := newFixture(t)
	r.writeSecret(t, "vault", map[string]string{fileValue: passphrase})
	plain := randomBytes(1 << 20)
	r.addImage(t, sourceID, plain)
	if _, err := r.clone(t, context.Background(), sourceID, cloneID, Encrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	again := ident.ID{Name: "again", UUID: "00c0ffee"}
	if _, err := r.clone(t, context.Background(), cloneID, again, Decrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	seen, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	// One call to encrypt and one to decrypt at least, so that the file shows what the test is about.
	if n := bytes.Count(seen, []byte("call\n")); n < 2 {
		t.Fatalf("%d calls of cryptsetup were recorded:\n%q", n, seen)
	}
	keyFile := filepath.Join(folder, "key")
	dump := exec.Command(program, "-q", "luksDump", "--dump-volume-key", "--volume-key-file", keyFile, "--key-file", filepath.Join(r.secrets, "vault", fileValue), r.path(cloneID))
	if out, err := dump.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string]string{
		"the passphrase": passphrase, "a part of the passphrase": "battery", "the passphrase in hex": hex.EncodeToString([]byte(passphrase)),
		"the key": string(key), "the key in hex": hex.EncodeToString(key), "the key in base64": base64.StdEncoding.EncodeToString(key),
		"the environment of the daemon": "ENVIRONMENT_OF_THE_DAEMON",
	} {
		if bytes.Contains(seen, []byte(secret)) {
			t.Errorf("the arguments and the environment of cryptsetup contain %s:\n%q", name, seen)
		}
	}
}
