package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
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
//	s3 VAR CREDENTIALS BUCKET...
//		Runs an S3 server that is not ours until the script ends, writes a folder of
//		credentials for it, and sets $VAR to the folder that has a folder for each
//		bucket and in it a file for each object, and $VAR_URL to the address.
//	requests VAR PATTERN N|N+
//		Asserts how many requests the origin $VAR got (N+: or more) that match
//		the regular expression, each in the form
//		"GET /image.raw?fault=cut range=bytes=4096- status=206 sent=1024".
//	forget VAR
//		Makes the origin forget the requests that it got.
//	address VAR
//		Sets $VAR to HOST:PORT on a loopback address that is free to listen on.
//	http [--tls DIR/[NAME]] METHOD URL [HEADER: VALUE]...
//		Sends a request, with the certificate of NAME (none without it) and to a
//		server that the ca.crt of DIR vouches for: the body of the answer is stdout, "HTTP/1.1 200 OK" and
//		the headers are stderr. Fails from status 400 on.
//	eventually [!] CMD [ARG]...
//		Runs one of exec, exists, grep, same, sparse, http, requests, shows, metric,
//		sent, passed and larger again and again until it succeeds (fails, with !), for at most a minute.
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
// $LONGHORN and $REPLICAS are the folders with disks that Longhorn wrote, packed, and
// $BACKUPS the one with its backups, $EXAMPLES that of the examples. $REPAIR_SIZE is the
// flag -repair.size, and one chunk and the manifest of so many bytes have less than
// $REPAIR_MOST.
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
//	certs DIR
//		Writes ca.crt, and the certificates and keys (server.crt, server.key, …) that
//		it issues to server, peer, admin, expired, elsewhere (for another host) and
//		server-only (not for clients), and those of stranger, an admin of the
//		other-ca.crt. All but elsewhere are for 127.0.0.1 to .3.
//	tus-client VAR
//		Sets $VAR to testdata/tus/upload.js, which uploads with tus-js-client: node $VAR …
//	rounds URL N
//		Waits until the daemon there has looked N more times.
//
// For several nodes:
//
//	cluster N
//		Makes node1 to nodeN, each with a disk1 and a disk2 at NODE/disk1 and
//		NODE/disk2, and declares them in conf/nodes.yaml. $AT1 (HOST:PORT) and $URL1
//		are where node1 answers; node2 is at 127.0.0.2, and so on.
//	start NODE... [FLAG]...
//		Starts the daemon of each node, with the configuration of conf, a look at
//		least once a second, and a log to NODE.log.
//	halt NODE...
//		Ends the daemons as systemd does; they have to agree.
//	crash NODE...
//		Kills the daemons with SIGKILL.
//	taken [-in DIR] URL...
//		Waits until the daemons there have the configuration of conf, or of DIR, and
//		have looked once more.
//	shows URL PATTERN...
//		Asserts that the status of the daemon there matches the regular expressions,
//		each of them somewhere in the lines "node2 answers=true PROBLEM",
//		"node2/disk1 PROBLEM", "NAME-UUID READY/WANTED MESSAGE",
//		"NAME-UUID node2/disk1 STATE MESSAGE" and
//		"NAME-UUID node2/disk1 passed over: REASON".
//	metric URL METRIC <|=|> N
//		Compares a metric of the daemon there, summed over its labels, with N.
//	gate VAR HOST:PORT SIZE
//		Sets $VAR to the HOST:PORT of a proxy for that address, which lets through no
//		more than so many bytes of answers, of all connections together, until the
//		script says open VAR.
//	passed VAR <|=|> SIZE
//		Compares how many bytes of answers have come through the gate $VAR.
//	larger FILE SIZE
//		Asserts that the file has more bytes.
//	hold NAME URL
//		Asks for URL, and reads no more than the first byte of the answer until the
//		script ends or says release NAME.
//	sent VAR <|=|> N
//		Compares how many bytes of content the origin $VAR has sent with N.
//
// Conditions: [root], [git].
//
// Run one scenario with: go test ./cmd/backing-image-manager -run Script/NAME
var (
	update     = flag.Bool("update", false, "write what scenarios print to where they compare it with")
	repairSize = flag.Int64("repair.size", 16<<20, "bytes of the image that the scenario cluster_repair damages a chunk of")
)

func TestMain(m *testing.M) {
	schema.ChildMain()
	if err := flag.Set("test.parallel", "6"); err != nil { // they wait more than they work; -parallel has precedence
		panic(err)
	}
	testscript.Main(m, map[string]func(){"backing-image-manager": main})
}

// plain builds the program without the race detector, and returns its folder. Below it, in
// mixed, is one that has the detector only where it stays a while.
var plain = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "backing-image-manager-plain")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir, ".") // like make build
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "mixed"), 0o755); err != nil {
		return "", err
	}
	text := "#!/bin/sh\ncase $1 in daemon | upload) exec \"$RACED\" \"$@\" ;; esac\nexec " + filepath.Join(dir, "backing-image-manager") + " \"$@\"\n"
	return dir, os.WriteFile(filepath.Join(dir, "mixed", "backing-image-manager"), []byte(text), 0o755)
})

func TestScript(t *testing.T) {
	if race.Enabled {
		dir, err := plain()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	testscript.Run(t, testscript.Params{
		Files:               scripts(t),
		Setup:               setup,
		Cmds:                commands,
		Condition:           condition,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// scripts are all scenarios, and those in which something runs with the race detector if
// there is one: the others are the same without it.
func scripts(t *testing.T) []string {
	all, err := filepath.Glob("../../testdata/script/*.txtar")
	if err != nil || len(all) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	if !race.Enabled {
		return all
	}
	return slices.DeleteFunc(all, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return !concurrent(strings.TrimSuffix(filepath.Base(file), ".txtar")) && !strings.Contains(string(text), "\nstart node1")
	})
}

// setup gives every script the same node, whatever the machine is called, and tells
// where disks are that Longhorn wrote.
func setup(env *testscript.Env) error {
	env.Setenv("NODE_NAME", "node1")
	env.Setenv("GORACE", "atexit_sleep_ms=0") // else each program lingers for a second
	longhorn, err := filepath.Abs("../../disk/testdata/longhorn")
	env.Setenv("LONGHORN", longhorn)
	env.Setenv("REPLICAS", filepath.Join(longhorn, "replicas"))
	env.Setenv("BACKUPS", filepath.Join(longhorn, "../../../fetch/backup/testdata"))
	env.Setenv("EXAMPLES", filepath.Join(longhorn, "../../../examples"))
	env.Setenv("REPAIR_SIZE", fmt.Sprint(*repairSize))
	env.Setenv("REPAIR_MOST", fmt.Sprint(disk.ChunkSize+(*repairSize+disk.ChunkSize-1)/disk.ChunkSize*int64(len(disk.ChunkHash{}))+1))
	if race.Enabled {
		dir, _ := plain() // TestScript has seen whether that works
		if concurrent(strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")) {
			of, _, _ := strings.Cut(env.Getenv("PATH"), string(filepath.ListSeparator))
			env.Setenv("RACED", filepath.Join(of, "backing-image-manager"))
			dir = filepath.Join(dir, "mixed")
		}
		env.Setenv("PATH", dir+string(filepath.ListSeparator)+env.Getenv("PATH"))
	}
	env.Values[originsKey{}] = origins{}
	env.Values[managersKey{}] = managers{}
	env.Values[heldKey{}] = held{}
	env.Values[gatesKey{}] = gates{}
	return err
}

// concurrent tells the scenarios of a program that stays, which runs with the race detector
// there. One run of a command has little that could race, and takes three times as long with
// it. (What start starts, has it anyway.)
func concurrent(name string) bool {
	return strings.HasPrefix(name, "daemon") || strings.HasPrefix(name, "upload")
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
