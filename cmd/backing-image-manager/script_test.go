package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// The scenarios are scripts in testdata/script. They run the real program, as
// "exec backing-image-manager …", in a folder of their own ($WORK), and have these
// commands besides those of testscript:
//
//	mkimage FILE raw|sparse|qcow2 SIZE [SEED]
//		Makes an image: SIZE bytes of noise (raw), 1 MiB of noise at the start
//		and at the middle of SIZE bytes of hole (sparse), or a qcow2 image of
//		that virtual size with 1 MiB of noise. Equal arguments, equal bytes. The
//		folders above it are made.
//	sum sha512|sha256 FILE VAR
//		Sets $VAR to the digest of the file, in hex.
//	serve VAR [DIR]
//		Serves the files below DIR ($WORK without it) over HTTP, as they are at
//		the time of each request, and sets $VAR to the address. Faults are asked
//		for in the address, as package fetchtest has them:
//		$VAR/image.raw?fault=cut&at=4096&times=1
//	requests VAR PATTERN N|N+
//		Asserts how many requests the origin $VAR got (N+: or more) that match
//		the regular expression, each in the form
//		"GET /image.raw?fault=cut range=bytes=4096- status=206 sent=1024".
//	forget VAR
//		Makes the origin forget the requests that it got.
//	address VAR
//		Sets $VAR to HOST:PORT on a loopback address that is free to listen on.
//	http METHOD URL [HEADER: VALUE]...
//		Sends a request: the body of the answer is stdout, "HTTP/1.1 200 OK" and
//		the headers are stderr. Fails from status 400 on.
//	eventually [!] CMD [ARG]...
//		Runs one of exec, exists, grep, sparse, http and requests again and again
//		until it succeeds (fails, with !), for at most 20 s.
//	sparse FILE
//		Asserts that the file takes less room than it has bytes.
//	same FILE FILE
//		Asserts that two files have the same bytes, and shows none of them.
//	replica DISK VOLUME IMAGEFOLDER|- [dirty|rebuilding|error|torn|empty]...
//		Makes the folder of a replica on a disk, whose volume.meta names the image
//		(-: none) in that state; torn is half of a volume.meta, empty none of it.
//	touch-time FILE RFC3339
//		Sets the modification time.
//	poke FILE OFFSET
//		Flips a bit of the byte at the offset.
//	tree DIR
//		Prints what is below DIR, sorted, one path a line: folders with a slash at
//		the end, files with their size where it is that of an image, links with
//		their target.
//	put FILE TEXT...
//		Writes the words as one line to a file, at once, by a rename. The
//		folders above it are made.
//	fill FILE TEMPLATE
//		Writes the template to a file, at once, with the values of $VAR in it.
//	small-disk DIR SIZE
//		Mounts a file system of that size in memory until the script ends.
//		Needs [root].
//
// $LONGHORN is the folder with disks that Longhorn wrote, packed.
//
//	reuse DISK NAME-UUID [CHECKSUM]
//		Asserts that Longhorn takes the image over as it is, by the rules of its own
//		manager: without a transfer and without hashing it.
//	bind DIR AT
//		Mounts the folder at another one too, until the script ends or says
//		unbind AT. Needs [root].
//	earlier DURATION RECORD...
//		Makes the times in records that clean-ups go by so much earlier, as if it
//		had passed since.
//	rot IMAGEFOLDER OFFSET
//		Flips a bit of an image that nothing shows but the bytes: the record vouches
//		for the file as it is then.
//	rounds URL N
//		Waits until the daemon there has looked N more times.
//
// Conditions: [root], [git].
//
// Run one scenario with: go test ./cmd/backing-image-manager -run Script/NAME
var update = flag.Bool("update", false, "write what scenarios print to where they compare it with")

func TestMain(m *testing.M) {
	schema.ChildMain()
	testscript.Main(m, map[string]func(){"backing-image-manager": main})
}

func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "../../testdata/script",
		Setup:               setup,
		Cmds:                commands,
		Condition:           condition,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// setup gives every script the same node, whatever the machine is called, and tells
// where disks are that Longhorn wrote.
func setup(env *testscript.Env) error {
	env.Setenv("NODE_NAME", "node1")
	env.Setenv("GORACE", "atexit_sleep_ms=0") // else each program lingers for a second
	longhorn, err := filepath.Abs("../../disk/testdata/longhorn")
	env.Setenv("LONGHORN", longhorn)
	env.Values[originsKey{}] = origins{}
	return err
}

func condition(name string) (bool, error) {
	switch name {
	case "root":
		return os.Geteuid() == 0, nil
	case "git":
		_, err := exec.LookPath("git")
		return err == nil, nil
	}
	return false, fmt.Errorf("no condition %q", name)
}
