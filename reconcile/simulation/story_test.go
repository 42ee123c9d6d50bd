package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// story is what happened last, for people.
type story struct {
	lines []string
	next  int
}

// tell adds a line to the story, if anybody reads it: a run that broke no rule is not
// told.
func (c *cluster) tell(node, format string, args ...any) {
	if c.story == nil {
		return
	}
	at := worldStart.Add(c.now).Sub(worldStart).Truncate(time.Millisecond)
	line := fmt.Sprintf("%12s %-7s %s", at, node, fmt.Sprintf(format, args...))
	if len(c.story.lines) < *clusterLines {
		c.story.lines = append(c.story.lines, line)
		return
	}
	c.story.lines[c.story.next%*clusterLines] = line
	c.story.next++
}

func (s *story) String() string {
	at := s.next % max(1, len(s.lines))
	return strings.Join(append(append([]string{}, s.lines[at:]...), s.lines[:at]...), "\n")
}

// String tells what a node told.
func (s *said) String() string {
	if s == nil {
		return "nothing new"
	}
	return stateText(s.state)
}

func stateText(s peer.State) string {
	text := "configuration " + s.Config
	for _, one := range s.Disks {
		text += ", " + one.Name + one.Problem
		for _, v := range one.Copies {
			text += fmt.Sprintf(" %s %s%s%s%s", v.ID, v.State, ifSo(v.Leaving, " leaving"), ifSo(v.UsedBy != "", " used"), ifSo(v.Action != "", " "+v.Action))
		}
	}
	return text
}
