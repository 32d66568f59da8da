// The header of a table on disk: what it is, and what it knows of itself as a whole.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "home.h"
#include "xxhash64.h"

namespace hybridrec {

constexpr uint32_t kFormat = 1;
constexpr char kMagic[16] = "hybridrec table";
constexpr uint64_t kTags = 1024;      // sources that may have one
constexpr uint64_t kStripes = 4096;   // of an index, at most

// What never changes. The text has a line "name value" for all that must be the same when it is opened again.
struct Head {
  char magic[16];
  uint32_t format, text_bytes;
  uint64_t checksum;
  char text[4064];

  uint64_t sum() const {
    return xxh64(reinterpret_cast<const uint8_t*>(text), text_bytes < sizeof text ? text_bytes : sizeof text, format);
  }
};
static_assert(sizeof(Head) == 4096, "a page");

// What changes with changes, and only with them.
struct Live {
  Standing standing;
  uint64_t changes, generation;  // made so far; how often there were other states
  int64_t widths[2];
  float fills[2];
  uint32_t states, rule_bytes;
  char rule[1024];
  uint64_t checksum;

  uint64_t sum() const { return xxh64(reinterpret_cast<const uint8_t*>(this), offsetof(Live, checksum), kFormat); }
};

// Of the change that is being made.
struct Control {
  uint64_t open;      // its number, or 0
  uint64_t end;       // of the log
  uint32_t emptying;  // all rows are on their way out
};

struct TagSlot {
  Tag tag;
  uint64_t used;
};

class Layout {
 public:
  static constexpr size_t kLive = 4096, kFigures = 8192, kControl = 8704, kTagsAt = 12288,
                          kStripesAt = kTagsAt + kTags * sizeof(TagSlot), kBytes = kStripesAt + kStripes * sizeof(Stripe);

  explicit Layout(uint8_t* header) : at_(header) {}
  Head* head() const { return reinterpret_cast<Head*>(at_); }
  Live* live() const { return reinterpret_cast<Live*>(at_ + kLive); }
  Figures* figures() const { return reinterpret_cast<Figures*>(at_ + kFigures); }
  Control* control() const { return reinterpret_cast<Control*>(at_ + kControl); }
  TagSlot* tags() const { return reinterpret_cast<TagSlot*>(at_ + kTagsAt); }
  Stripe* stripes() const { return reinterpret_cast<Stripe*>(at_ + kStripesAt); }

 private:
  uint8_t* at_;
};
static_assert(sizeof(Live) <= 4096 && sizeof(Figures) <= 512 && Layout::kBytes % 4096 == 0);

}  // namespace hybridrec
