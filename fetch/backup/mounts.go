package backup

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// share is a folder that a file server exports, or one below it.
type share struct{ host, path string }

func (s *share) String() string {
	host := s.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "nfs://" + host + ":" + s.path
}

// mounted returns the path of the share on this machine by a table of mounts, as
// /proc/self/mountinfo has them; empty: it is not mounted.
func (s *share) mounted(table io.Reader) (string, error) {
	found := ""
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m, ok := parseMount(lines.Text())
		if !ok {
			continue
		}
		if at, ok := m.path(*s); ok && m.visible() {
			found = at // any will do: they are the same folder
		}
	}
	return found, lines.Err()
}

// mount is one of a share.
type mount struct {
	device string // "major:minor"
	at     string
	share  share
}

// parseMount reads a line, which is of a share if it says so:
//
//	36 35 0:45 / /mnt/backups rw,noatime shared:1 - nfs4 server:/export rw,vers=4.2
func parseMount(line string) (mount, bool) {
	before, after, _ := strings.Cut(line, " - ")
	m, of := strings.Fields(before), strings.Fields(after)
	if len(m) < 6 || len(of) < 2 || of[0] != "nfs" && of[0] != "nfs4" {
		return mount{}, false
	}
	host, exported, ok := strings.Cut(unescape(of[1]), ":/")
	if !ok {
		return mount{}, false
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return mount{device: m[2], at: unescape(m[4]), share: share{host, path.Join("/", exported, unescape(m[3]))}}, true
}

// path returns where s is, if the mount has it.
func (m mount) path(s share) (string, bool) {
	rest, ok := strings.CutPrefix(s.path+"/", strings.TrimSuffix(m.share.path, "/")+"/")
	if !ok || m.share.host != s.host {
		return "", false
	}
	return path.Join(m.at, rest), true
}

// visible reports whether the mount is what is at its path, and not one that was
// mounted over it.
func (m mount) visible() bool {
	var stat unix.Stat_t
	err := unix.Stat(m.at, &stat)
	return err == nil && m.device == fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
}

// unescape reads the octal numbers that the table has for blanks and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
